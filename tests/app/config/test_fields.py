"""What the fields of a configuration become: names of the model, devices, and options of the application's parts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from app.api.tools.families import FAMILIES
from app.cli import parser
from app.commands.serve import config_from
from app.composition.operation import access_options
from app.composition.pipeline import aliases, router_options, target_options, trained_drafter
from app.config.errors import config_of
from app.config.flags import config_of_flags
from app.config.serve import ServeConfig
from app.inputs import devices
from app.inputs.default_model import DRAFTER
from app.inputs.devices import device_named
from app.offline.flags import add_model, add_speculation, checked_config
from engine.drafter.settings import DrafterSettings
from engine.errors import ConfigError
from engine.target_model.options import GIB


def served(*flags: str) -> ServeConfig:
    return config_from(parser().parse_args(["serve", *flags]))


@pytest.mark.parametrize(
    ("given", "names", "further"),
    [
        ({"model": "org/model-8b"}, ("model-8b",), ("org/model-8b",)),
        ({"model": "org/model-8b", "name": ["org/model-8b", "a", "a"]}, ("org/model-8b", "a"), ("a",)),
        ({"model": "/tmp", "name": ["gpt-4o", "tiny"]}, ("gpt-4o", "tiny"), ("tiny",)),
        ({"model": "/tmp"}, ("tmp",), ()),  # a directory is not a hub id
    ],
)
def test_the_first_name_is_shown_and_the_others_are_accepted(
    given: dict[str, Any], names: tuple[str, ...], further: tuple[str, ...]
) -> None:
    config = ServeConfig(**given)
    assert (config.served_names, config.served_name, aliases(config)) == (names, names[0], further)


def test_flags_reach_the_configuration(tiny_checkpoint: Path) -> None:
    assert served("--name", "a", "--name", "b").served_names == ("a", "b")
    for family in ("auto", "none", *FAMILIES):
        config = served("--tool-parser", family, "--reasoning-parser", "think")
        assert (config.tool_parser, config.reasoning_parser) == (family, "think")
    assert (ServeConfig().tool_parser, ServeConfig().reasoning_parser) == ("auto", "auto")
    model = ("--model", str(tiny_checkpoint))
    assert router_options(served(*model)).scheduler.prefix_cache
    assert not router_options(served(*model, "--prefix-cache", "false")).scheduler.prefix_cache
    assert served("--edge-resources", '{"edge": 0.01}').edge_resources == {"edge": 0.01}
    assert config_of({"edge_resources": {"edge": 1, "rack-7.a": "0.5"}}).edge_resources == {"edge": 1, "rack-7.a": 0.5}
    assert served("--drafter", "org/drafter", "--drafter-options", '{"depth": 3}').drafter_options.depth == 3


def test_the_options_of_an_ingress_are_those_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys").touch()
    given = {"api_keys": "keys", "cors_origins": "https://a.example, https://b.example:8443", "ingress_replicas": "3"}
    options = access_options(config_from(argparse.Namespace(**given)))
    assert options.api_keys == str(tmp_path / "keys")  # replicas run in other folders
    assert options.cors_origins == ("https://a.example", "https://b.example:8443")
    assert (options.replicas, options.trust_clients, options.open_metrics) == (3, False, False)


def test_splits_numerics_and_drafters_reach_the_target() -> None:
    target = target_options(ServeConfig(stages=2, layer_split="3,5", stage_memory_gib="2,1.5", quantization="int8"))
    assert (target.split, target.stage_memory, target.quantization) == ("3,5", (2 * GIB, 3 * GIB // 2), "int8")
    assert target.cost_folder
    assert target_options(served("--tensor-parallel", "4", "--stages", "2")).tensor_parallel == 4
    assert target_options(ServeConfig()).tensor_parallel == 1
    assert target_options(ServeConfig(stage_memory_gib=3)).stage_memory == (3 * GIB,)
    assert target_options(ServeConfig(device="cuda", stage_gpus=1, numerics="exact")).numerics == "exact"
    plain = target_options(ServeConfig())
    assert (plain.split, plain.stage_memory, plain.quantization, plain.numerics) == ("auto", (), None, "auto")
    config = ServeConfig(drafter="org/drafter", drafter_options={"depth": 4, "layers": [-1, 3, 12]})
    expected = DrafterSettings("org/drafter", (-1, 3, 12), depth=4)
    assert trained_drafter(config) == target_options(config).drafter == expected


def test_the_default_model_has_a_drafter_where_auto_decides() -> None:
    assert trained_drafter(ServeConfig()) == DrafterSettings(str(DRAFTER), depth=2, beam=4)
    assert trained_drafter(ServeConfig(drafter_options={"depth": 5})) == DrafterSettings(str(DRAFTER), depth=5, beam=4)
    with pytest.raises(ConfigError, match="drafter_options is given, but there is no drafter"):
        trained_drafter(ServeConfig(method="pld", drafter_options={"depth": 3}))
    for other in ({"drafter": "none"}, {"method": "pld"}, {"model": "org/other"}, {"simulate": "8b-h200"}):
        assert trained_drafter(ServeConfig(**other)) is None


def test_a_number_of_pipelines_is_fixed_or_has_bounds() -> None:
    fixed, elastic = ServeConfig(replicas=3), ServeConfig(min_replicas=2, max_replicas=5, affinity="prefix")
    assert (fixed.least_pipelines, fixed.most_pipelines) == (3, 3)
    assert (elastic.least_pipelines, elastic.most_pipelines) == (2, 5)


@pytest.mark.parametrize(
    ("files", "sees", "expected"),
    [((), True, "cpu"), (("nvidia0",), True, "cuda"), (("nvidia0",), False, "cpu"), (("nvidiactl",), True, "cpu")],
)
def test_a_command_takes_a_gpu_that_torch_sees(
    files: tuple[str, ...], sees: bool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "DEVICES", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees)
    for name in files:
        (tmp_path / name).touch()
    flags = argparse.ArgumentParser()
    add_model(flags)
    for given in ([], ["--device", "auto"]):
        assert checked_config(flags.parse_args(given), 0.0).device == expected
    for given in ("cpu", "cuda", "cuda:1", "tpu"):  # checked later, in a sentence
        assert device_named(given) == given


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "cpu"),
        ({"stage_gpus": 1}, "cuda"),
        ({"stage_gpus": 1, "device": "cpu"}, "cpu"),
        ({"stage_gpus": 1, "device": "cuda:1"}, "cuda:1"),
        ({"stage_gpus": 1, "simulate": "flat10"}, "cpu"),
    ],
)
def test_a_stage_runs_on_the_gpu_that_it_reserves(given: dict[str, object], expected: str) -> None:
    config = ServeConfig.model_validate(given)
    assert config.stage_device == target_options(config).device == expected


IN_ACTORS = {"speculator_actors": 1, "speculator_gpus": 0.5}


@pytest.mark.parametrize(
    ("given", "device", "numerics"),
    [
        ({}, "cpu", "auto"),
        (IN_ACTORS, "cuda", "exact"),
        ({"draft_model_options": {"device": "auto"}}, "cpu", "auto"),
        (IN_ACTORS | {"draft_model_options": {"numerics": "fast"}}, "cuda", "fast"),
    ],
)
def test_a_draft_model_runs_on_the_gpu_of_its_actor_with_the_numerics_of_the_target(
    given: dict[str, Any], device: str, numerics: str
) -> None:
    config = ServeConfig.model_validate({"stage_gpus": 1, "numerics": "exact", "draft_model": "small"} | given)
    assert (config.draft_model_settings["device"], config.draft_model_settings["numerics"]) == (device, numerics)


@pytest.mark.parametrize(("device", "default"), [("cpu", 64), ("cuda", 63), ("cuda:1", 63)])
def test_servers_and_commands_draft_a_number_of_nodes_that_suits_the_device(
    device: str, default: int, tiny_checkpoint: Path
) -> None:
    flags = argparse.ArgumentParser()
    add_model(flags)
    add_speculation(flags)
    for given, expected in ((None, default), (0, 0), (300, 300)):
        gpus = 0 if device == "cpu" else 1
        config = ServeConfig(model=str(tiny_checkpoint), device=device, stage_gpus=gpus, max_nodes=given)
        options = router_options(config)
        assert (config.draft_nodes, options.max_nodes, options.limit_nodes) == (expected, expected, max(256, expected))
        assert options.fits_nodes == (given is None and device == "cpu")  # to the measured step times
        more = [] if given is None else ["--max-nodes", str(given)]
        assert (
            config_of_flags(flags.parse_args(more), ("max_nodes",), device=device, stage_gpus=gpus).draft_nodes
            == expected
        )
