"""Which small models are taken as drafters, and what is said of the others."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.cli import main
from app.commands.serve import config_from
from app.composition.speculation import check_served_drafter, placement, speculator_options
from app.config.serve import ServeConfig
from app.demo.paths import DEMO_DRAFTER, DEMO_TARGET
from deployments.options import SpeculatorPlacement
from engine.errors import ConfigError, UnknownMethodError, UnsupportedModelError
from speculators.pool import SpeculatorPool

PROMPT = ("--prompt", "Write a story about a fox.", "--max-new-tokens", "24")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*flags: str) -> str:
        assert main(["generate", *PROMPT, *flags]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        return said.err.strip()

    return run


@pytest.fixture
def other_tokenizer(tmp_path: Path) -> Path:
    """The demo drafter, but two of its ids have changed places."""
    folder = tmp_path / "other"
    shutil.copytree(DEMO_DRAFTER, folder)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    one, two = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture
def other_size(tmp_path: Path) -> Path:
    """The demo drafter's files, but its config speaks of more ids."""
    folder = tmp_path / "larger"
    shutil.copytree(DEMO_DRAFTER, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 5000}))
    return folder


def test_the_packaged_drafter_drafts_for_the_packaged_model(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    flags: tuple[str, ...]
    for flags in (("--method", "autoregressive"), ("--method", "draft-model", "--draft-model", "demo")):
        for tree in (("--draft-nodes", "0"), ("--draft-nodes", "12", "--draft-tokens", "4")):
            assert main(["generate", *PROMPT, "--json", *flags, *tree]) == 0
            line = json.loads(capsys.readouterr().out)
            texts.append(line["token_ids"])
            if "draft-model" in flags:
                assert line["by_source"]["draft-model"]["accepted"] > 0
                assert line["max_nodes_used"] == (12 if "12" in tree else 5)
    assert texts == texts[:1] * 4


def test_the_method_without_a_model_names_the_flag(refused: Callable[..., str]) -> None:
    assert "--draft-model DIR" in refused("--method", "draft-model")


def test_another_tokenizer_is_refused(refused: Callable[..., str], other_tokenizer: Path) -> None:
    said = refused("--method", "draft-model", "--draft-model", str(other_tokenizer))
    assert said == (
        f"spectra: --draft-model {other_tokenizer} has another tokenizer than the target: "
        "the same ids stand for other tokens"
    )


def test_another_vocabulary_is_refused(refused: Callable[..., str], other_size: Path) -> None:
    said = refused("--method", "pld", "--draft-model", str(other_size))
    assert said.startswith(
        f"spectra: --draft-model {other_size} has a vocabulary of 5000 token ids, the target one of 40"
    )


@pytest.mark.parametrize(
    ("flags", "named"),
    [(("--draft-tokens", "0"), "--draft-tokens is 0"), (("--draft-nodes", "-1"), "--draft-nodes is -1")],
)
def test_values_out_of_range_name_their_flag(refused: Callable[..., str], flags: tuple[str, ...], named: str) -> None:
    assert named in refused("--method", "draft-model", "--draft-model", "demo", *flags)


def test_a_folder_without_a_model_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    assert refused("--draft-model", str(tmp_path)).startswith("spectra: --draft-model: ")


def test_a_server_takes_the_same_settings_and_makes_the_same_checks(other_tokenizer: Path, tmp_path: Path) -> None:
    config = config_from(
        Namespace(draft_model="demo", draft_model_options='{"draft_tokens": 3, "tree_nodes": 9}', dtype="bfloat16")
    )
    settings = speculator_options(config).draft_model
    assert (settings.draft_tokens, settings.tree_nodes, settings.dtype) == (3, 9, "bfloat16")
    assert settings.path == str(DEMO_DRAFTER.resolve())
    check_served_drafter(config)
    check_served_drafter(ServeConfig(model=str(DEMO_TARGET)))
    with pytest.raises(ConfigError, match="has another tokenizer"):
        check_served_drafter(ServeConfig(draft_model=str(other_tokenizer)))
    with pytest.raises(UnsupportedModelError, match="--draft-model"):
        check_served_drafter(ServeConfig(draft_model=str(tmp_path)))
    with pytest.raises(ConfigError, match="--draft-model-options has no setting 'path'; draft_model says"):
        config_from(Namespace(draft_model_options='{"path": "somewhere"}'))
    with pytest.raises(ConfigError, match="draft-model: draft_tokens must be"):
        config_from(Namespace(draft_model_options='{"draft_tokens": 0}'))


def test_on_a_gpu_a_server_needs_actors_that_have_one() -> None:
    given = {"draft_model": "demo", "device": "cuda", "stage_gpus": 0.5}
    for more in ({}, {"speculator_actors": 1}, {"speculator_gpus": 0.2}):
        with pytest.raises(ValidationError, match="speculator_actors of at least 1 and speculator_gpus"):
            ServeConfig.model_validate(given | more)
    config = ServeConfig.model_validate(given | {"speculator_actors": 1, "speculator_gpus": 0.2})
    assert placement(config) == SpeculatorPlacement(1, 2.0, 0.2)
    assert speculator_options(config).draft_model.device == "cuda"
    on_cpu = ServeConfig.model_validate(given | {"draft_model_options": {"device": "cpu"}})
    assert speculator_options(on_cpu).draft_model.device == "cpu"


def test_a_request_for_it_on_a_server_without_one_is_the_clients_error() -> None:
    """An ``UnknownMethodError`` is a 400 at the edge, whatever method it is about."""
    pool = SpeculatorPool(speculator_options(ServeConfig()))
    with pytest.raises(UnknownMethodError, match="--draft-model DIR") as caught:
        pool.needs("pld+draft-model")
    assert caught.value.param == "method"
