"""Drafted nodes per step: with the root a tile of rows on a GPU, 64 on a CPU, and what is asked for in any case."""

from __future__ import annotations

import argparse

import pytest

from app.composition.pipeline import router_options
from app.config.serve import ServeConfig
from app.offline.flags import add_model, add_speculation, draft_nodes


@pytest.mark.parametrize(("device", "wanted"), [("cpu", 64), ("cuda", 63), ("cuda:1", 63)])
def test_a_server_and_a_command_draft_what_suits_the_device(device: str, wanted: int) -> None:
    parser = argparse.ArgumentParser()
    add_model(parser)
    add_speculation(parser)
    gpus = 0.0 if device == "cpu" else 1.0
    for asked, expected in ((None, wanted), (0, 0), (63, 63), (64, 64), (300, 300)):
        config = ServeConfig(device=device, stage_gpus=gpus, max_nodes=asked)
        options = router_options(config)
        assert (config.draft_nodes, options.max_nodes, options.limit_nodes) == (expected, expected, max(256, expected))
        flags = ["--device", device] + ([] if asked is None else ["--max-nodes", str(asked)])
        assert draft_nodes(parser.parse_args(flags)) == expected
