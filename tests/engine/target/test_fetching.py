"""What a process fetches of a model on a hub, into a home of its own: real HTTP to a hub on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from engine.model.ranges import LayerRange
from tests.support.model_hub import ModelHub, model_hub
from tests.support.tiny_models import tiny_model

NAME = "acme/tiny"
PROGRAM = """
import json, os, sys
from pathlib import Path
# What takes long to import and knows no hub, once for all: each process below is a fork.
import torch, torch._dynamo, torch.distributed.tensor

def said(questions):
    from engine.errors import SpectraError
    from engine.model.identity import model_hash
    from engine.model.ranges import LayerRange
    from engine.model.resolve import pinned
    from engine.model.weights.tensors import CheckpointTensors
    from engine.target.fetching import layers_of, texts_of
    from engine.target.options import TargetOptions

    for what, model, revision, layers in questions:
        options = TargetOptions(model, revision=revision)
        try:
            if what == "pinned":
                yield pinned(model)
            else:
                path = texts_of(options) if what == "texts" else layers_of(options, LayerRange(*layers))
                if what == "layers":
                    CheckpointTensors(path, torch.device("cpu")).close()
                yield [path.name, sorted(file.name for file in path.glob("*.safetensors")), model_hash(path)]
        except SpectraError as error:
            yield str(error)

assert "huggingface_hub" not in sys.modules  # which reads the environment as it is imported
for line in sys.stdin:
    environment, questions = json.loads(line)
    process = os.fork()
    if not process:
        os.environ |= environment
        print(json.dumps([*said(questions)]), flush=True)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A process that forks one for every line of its stdin, which holds an environment and questions."""
    errors = tmp_path_factory.mktemp("forks") / "stderr.txt"
    with errors.open("w") as stderr:
        command = [sys.executable, "-c", PROGRAM]
        program = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=stderr, text=True)
        with program:
            yield program
            assert program.poll() is None, errors.read_text()
            program.communicate()


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
def process(hub: ModelHub, forks: subprocess.Popen[str], tmp_path: Path) -> Callable[..., list[Any]]:
    """``process("one", ["layers", NAME, None, [0, 2, 4]])``: what a process of that client says to these questions."""

    def ask(client: str, *questions: list[Any], **environment: str) -> list[Any]:
        told = {"HF_HOME": f"{tmp_path}/{client}", "HF_HUB_USER_AGENT_ORIGIN": client}
        told |= {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_PROGRESS_BARS": "1"} | environment
        assert forks.stdin is not None
        assert forks.stdout is not None
        print(json.dumps([told, questions]), file=forks.stdin, flush=True)
        said: list[Any] = json.loads(forks.stdout.readline() or "null")
        assert said is not None, "it failed; what it wrote follows when the module ends"
        return said

    return ask


def files(checkpoint: Path, layers: LayerRange) -> set[str]:
    """By the index itself: the files of tensors of these layers, and of what the ends of a model add."""
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())["weight_map"]

    def is_of(name: str) -> bool:
        if name.startswith("model.layers."):
            return layers.first <= int(name.split(".")[2]) < layers.last
        return layers.is_first if "embed" in name else layers.is_last

    return {file for name, file in index.items() if is_of(name)}


def test_texts_need_no_weights_and_a_stage_needs_those_of_its_layers(
    hub: ModelHub, checkpoint: Path, process: Callable[..., list[Any]]
) -> None:
    commit = hub.publish(NAME, checkpoint)
    [texts] = process("ingress", ["texts", NAME, None, None])
    assert texts[:2] == [commit, []]
    assert hub.files_of("ingress", commit, ".safetensors") == set()
    assert "config.json" in hub.files_of("ingress", commit)
    for client, layers in (("first", [0, 2, 4]), ("last", [2, 4, 4])):
        [loaded] = process(client, ["layers", NAME, None, layers])
        wanted = files(checkpoint, LayerRange(*layers))
        assert hub.files_of(client, commit, ".safetensors") == wanted == set(loaded[1])
        assert loaded[2] == texts[2]  # one model, however much of it a process has
    everything = {file.name for file in checkpoint.glob("*.safetensors")}
    assert files(checkpoint, LayerRange(0, 2, 4)) < everything


def test_a_branch_that_moves_between_two_starts_does_not_mix(
    hub: ModelHub, checkpoint: Path, process: Callable[..., list[Any]], tmp_path: Path
) -> None:
    old = hub.publish(NAME, checkpoint)
    named, [commit, *_] = process("builder", ["pinned", NAME, None, None], ["texts", NAME, None, None])
    assert (named, commit) == (f"{NAME}@{old}", old)
    newer = tmp_path / "newer"
    tiny_model("qwen3").save_pretrained(newer, max_shard_size="4KB")
    new = hub.publish(NAME, newer)
    for client, asked in (("target", [NAME, old]), ("drafter", [named, None])):  # they start after the move
        [[found, weights, _]] = process(client, ["layers", *asked, [0, 4, 4]])
        assert found == old
        assert set(weights) == {file.name for file in checkpoint.glob("*.safetensors")}
        assert hub.files_of(client, new) == set()
    [[found, *_]] = process("target", ["texts", NAME, None, None])  # asked without a commit, it is the newer one
    assert found == new


def test_a_hub_that_is_away_costs_nothing_that_is_here_and_is_named_for_the_rest(
    hub: ModelHub, checkpoint: Path, process: Callable[..., list[Any]]
) -> None:
    commit = hub.publish(NAME, checkpoint)
    [whole] = process("one", ["layers", NAME, commit, [0, 2, 4]])
    questions = ["layers", NAME, commit, [0, 2, 4]], ["layers", NAME, commit, [2, 4, 4]]
    again, lacks = process("one", *questions, HF_HUB_OFFLINE="1")  # else the library asks for a minute
    assert again == whole
    [nothing] = process("two", ["texts", NAME, commit, None], HF_ENDPOINT="http://127.0.0.1:9")
    for refused in (lacks, nothing):
        assert refused.startswith(f"revision '{commit}' of model '{NAME}' is neither a directory nor a repository")


def test_a_model_of_one_file_is_that_file_for_every_stage(
    hub: ModelHub, tmp_path: Path, process: Callable[..., list[Any]]
) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "single")
    commit = hub.publish(NAME, tmp_path / "single")
    [[_, weights, _]] = process("one", ["layers", NAME, None, [1, 2, 4]])
    assert weights == ["model.safetensors"]
    (tmp_path / "single" / "model.safetensors").rename(tmp_path / "single" / "pytorch_model.bin")
    other = hub.publish("acme/pickled", tmp_path / "single")
    [refused] = process("one", ["layers", "acme/pickled", None, [1, 2, 4]])
    assert other != commit
    assert "has neither model.safetensors nor" in refused
