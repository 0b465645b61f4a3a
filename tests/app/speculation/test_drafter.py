"""Which small models are accepted as draft models, and why others are refused."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path

import pytest

from app.commands.serve import config_from
from app.composition.speculation import check_served_drafter, placement, speculator_options
from app.config.serve import ServeConfig
from deployments.options import SpeculatorPlacement
from engine.errors import ConfigError, UnknownMethodError, UnsupportedModelError
from speculators.draft_model.config import DraftModelConfig
from speculators.pool import SpeculatorPool
from tests.support.spectra_command import generated, run_cli
from tests.support.tiny_models import saved_checkpoint

PROMPT = ("--prompt", "Write a story about a fox.", "--max-tokens", 24)


@pytest.fixture
def other_tokenizer(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint with two of its ids exchanged."""
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "other")
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    one, two = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_a_draft_model_drafts_and_changes_no_text(tiny_checkpoint: Path) -> None:
    [plain] = generated(tiny_checkpoint, *PROMPT, "--method", "autoregressive")
    drafter = ("--method", "draft-model", "--draft-model", tiny_checkpoint)
    for tree, nodes in (('{"tree_nodes": 0}', 5), ('{"tree_nodes": 12, "draft_tokens": 4}', 12)):
        [line] = generated(tiny_checkpoint, *PROMPT, *drafter, "--draft-model-options", tree)
        assert line["token_ids"] == plain["token_ids"]
        assert line["by_source"]["draft-model"]["accepted"] > 0
        assert line["max_nodes_used"] == nodes


def test_a_drafter_with_another_vocabulary_is_refused(other_tokenizer: Path, tiny_checkpoint: Path) -> None:
    larger = saved_checkpoint(400)
    n_ids = json.loads((larger / "config.json").read_text())["vocab_size"]
    for folder, method, says in (
        (
            other_tokenizer,
            "draft-model",
            "has another tokenizer than the target: ids stand for other tokens",
        ),
        (larger, "pld", f"has a vocabulary of {n_ids} token ids, but the target has 320"),
    ):
        ran = run_cli("generate", "--model", tiny_checkpoint, *PROMPT, "--method", method, "--draft-model", folder)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith(f"spectra: --draft-model {folder} {says}")


def test_a_server_takes_the_same_settings_and_makes_the_same_checks(
    other_tokenizer: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    model = str(tiny_checkpoint)
    options = '{"draft_tokens": 3, "tree_nodes": 9}'
    config = config_from(Namespace(model=model, draft_model=model, draft_model_options=options, dtype="bfloat16"))
    served = speculator_options(config)
    settings = served.settings_of(DraftModelConfig)
    assert (settings.draft_tokens, settings.tree_nodes, settings.dtype) == (3, 9, "bfloat16")
    assert served.draft_model == str(tiny_checkpoint.resolve())
    check_served_drafter(config)
    check_served_drafter(ServeConfig(model=model))
    with pytest.raises(ConfigError, match="has another tokenizer"):
        check_served_drafter(ServeConfig(model=model, draft_model=str(other_tokenizer)))
    with pytest.raises(UnsupportedModelError, match="--draft-model"):
        check_served_drafter(ServeConfig(model=model, draft_model=str(tmp_path)))
    given = {"model": model, "draft_model": model, "device": "cuda", "stage_gpus": 0.5}
    in_actors = ServeConfig.model_validate(given | {"speculator_actors": 1, "speculator_gpus": 0.2})
    assert placement(in_actors) == SpeculatorPlacement(1, 2.0, 0.2)
    assert speculator_options(in_actors).settings_of(DraftModelConfig).device == "cuda"
    on_cpu = ServeConfig.model_validate(given | {"draft_model_options": {"device": "cpu"}})
    assert speculator_options(on_cpu).settings_of(DraftModelConfig).device == "cpu"


def test_a_request_for_a_draft_model_that_a_server_lacks_is_an_error_of_the_client(tiny_checkpoint: Path) -> None:
    pool = SpeculatorPool(speculator_options(ServeConfig(model=str(tiny_checkpoint))))
    with pytest.raises(UnknownMethodError, match="--draft-model DIR") as caught:  # a status of 400 at the edge
        pool.needs("pld+draft-model")
    assert caught.value.param == "method"
