"""A process fetches only what it needs of a model on a hub: real HTTP to a hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine.errors import SpectraError
from engine.model.identity import model_hash
from engine.model.ranges import LayerRange
from engine.model.resolve import HUB_PROXIES, pinned
from engine.model.weights.tensors import CheckpointTensors
from engine.target_model.fetching import layers_of, texts_of
from engine.target_model.options import TargetOptions
from tests.support.model_hub import ModelHub, fetch_from, model_hub
from tests.support.tiny_models import tiny_model

NAME = "acme/tiny"


@pytest.fixture
def hub() -> Iterator[ModelHub]:
    with model_hub() as started:
        yield started


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    tiny_model("llama").save_pretrained(folder, max_shard_size="4KB")
    return folder


@pytest.fixture
def use(hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``use("one")``: from now on this process fetches as that client does, with a cache of its own."""

    def use_client(client: str, url: str = hub.url, offline: bool = False) -> None:
        fetch_from(monkeypatch, url, tmp_path / client, client, offline)

    return use_client


def load(model: str, revision: str | None, layers: LayerRange) -> tuple[str, set[str], str]:
    """Commit, weight files and hash of what a stage fetches."""
    path = layers_of(TargetOptions(model, revision=revision), layers)
    CheckpointTensors(path, torch.device("cpu")).close()
    return path.name, {file.name for file in path.glob("*.safetensors")}, model_hash(path)


def files(checkpoint: Path, layers: LayerRange) -> set[str]:
    """The files of tensors of these layers by the index, and those of embedding, norm and head."""
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())["weight_map"]

    def is_of(name: str) -> bool:
        if name.startswith("model.layers."):
            return layers.first <= int(name.split(".")[2]) < layers.last
        return layers.is_first if "embed" in name else layers.is_last

    return {file for name, file in index.items() if is_of(name)}


def test_texts_need_no_weights_and_a_stage_needs_those_of_its_layers(
    hub: ModelHub, checkpoint: Path, use: Callable[..., None]
) -> None:
    commit = hub.publish(NAME, checkpoint)
    use("ingress")
    texts = texts_of(TargetOptions(NAME))
    assert texts.name == commit
    assert hub.files_of("ingress", commit, ".safetensors") == set()
    assert "config.json" in hub.files_of("ingress", commit)
    for client, layers in (("first", LayerRange(0, 2, 4)), ("last", LayerRange(2, 4, 4))):
        use(client)
        _, weights, hashed = load(NAME, None, layers)
        assert hub.files_of(client, commit, ".safetensors") == files(checkpoint, layers) == weights
        assert hashed == model_hash(texts), "one model, however much of it a process has"
    assert files(checkpoint, LayerRange(0, 2, 4)) < {file.name for file in checkpoint.glob("*.safetensors")}


def test_processes_that_start_before_and_after_a_push_use_one_commit(
    hub: ModelHub, checkpoint: Path, use: Callable[..., None], tmp_path: Path
) -> None:
    old = hub.publish(NAME, checkpoint)
    use("builder")
    named = pinned(NAME)
    assert named == f"{NAME}@{old}"
    tiny_model("qwen3").save_pretrained(tmp_path / "newer", max_shard_size="4KB")
    new = hub.publish(NAME, tmp_path / "newer")
    for client, model, revision in (("target", NAME, old), ("drafter", named, None)):
        use(client)
        commit, weights, _ = load(model, revision, LayerRange(0, 4, 4))
        assert commit == old
        assert weights == {file.name for file in checkpoint.glob("*.safetensors")}
        assert hub.files_of(client, new) == set()
    assert texts_of(TargetOptions(NAME)).name == new, "without a commit it is the newest"


def test_without_the_hub_cached_files_suffice_and_missing_ones_are_an_error(
    hub: ModelHub, checkpoint: Path, use: Callable[..., None]
) -> None:
    commit = hub.publish(NAME, checkpoint)
    use("one")
    whole = load(NAME, commit, LayerRange(0, 2, 4))
    use("one", offline=True)
    assert load(NAME, commit, LayerRange(0, 2, 4)) == whole
    refused = f"revision '{commit}' of model '{NAME}' is neither a directory nor a repository"
    with pytest.raises(SpectraError, match=refused):
        load(NAME, commit, LayerRange(2, 4, 4))
    use("two", "http://127.0.0.1:9")
    with pytest.raises(SpectraError, match=refused):
        texts_of(TargetOptions(NAME, revision=commit))


@pytest.mark.parametrize("name", ["https_proxy", "ALL_PROXY"])
def test_a_hub_out_of_reach_is_one_line_that_names_the_variable_of_the_proxy(
    name: str, use: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in HUB_PROXIES:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    use("one", "http://127.0.0.1:9")
    refused = f"model '{NAME}' is neither a directory nor a repository that could be fetched"
    with pytest.raises(SpectraError, match=rf"^{refused}: ConnectError: .*refused$"):
        pinned(NAME)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(SpectraError, match=rf"^{refused} \({name} is set\): ConnectError: .*refused$"):
        pinned(NAME)


def test_every_stage_fetches_the_one_file_of_a_small_model(
    hub: ModelHub, tmp_path: Path, use: Callable[..., None]
) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "single")
    hub.publish(NAME, tmp_path / "single")
    use("one")
    assert load(NAME, None, LayerRange(1, 2, 4))[1] == {"model.safetensors"}
    (tmp_path / "single" / "model.safetensors").rename(tmp_path / "single" / "pytorch_model.bin")
    hub.publish("acme/pickled", tmp_path / "single")
    with pytest.raises(SpectraError, match=r"has neither model\.safetensors nor"):
        load("acme/pickled", None, LayerRange(1, 2, 4))
