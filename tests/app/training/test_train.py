"""``spectra train`` from prompts to a checkpoint, interrupted or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from app.inputs.default_model import HUB_ID
from app.training import train
from app.training.captured import CapturedStates
from app.training.examples import Split
from app.training.losses import DraftLoss
from engine.drafter.checkpoint.read import read_drafter
from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.loop import Engine
from engine.model.loader import load_spec
from engine.target_model.whole_texts import WholeTexts
from tests.support.spectra_command import CliRun, run_cli
from tests.support.tiny_models import saved_checkpoint

N_PROMPTS = 24
SIZES = ("--max-tokens", 16, "--max-length", 64, "--batch", 4, "--roots", 8, "--measured", 4)


def run_train(folder: Path, method: str, *flags: object) -> CliRun:
    """Train in ``folder/out`` on questions with little in common, every fifth with a second turn."""
    folder.mkdir(exist_ok=True)
    file = folder / "prompts.jsonl"
    turns = [[f"{chr(97 + i)} tale of {i * i} things", "and then?"][: 1 + (i % 5 == 0)] for i in range(N_PROMPTS)]
    file.write_text("".join(json.dumps({"turns": asked}) + "\n" for asked in turns))
    where = ("--target", saved_checkpoint(), "--out", folder / "out", "--prompts", file)
    return run_cli("train", "--method", method, *where, *SIZES, *flags)


def drafter_in(folder: Path) -> DrafterCheckpoint:
    return read_drafter(folder / "out", load_spec(saved_checkpoint()))


Trained = tuple[Path, CliRun, list[Any], Split]
FLAGS = ("--steps", 4, "--held-out", 0.25)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The folder of a training, the run, the texts it was trained on, and the split."""
    folder = tmp_path_factory.mktemp("training")
    splits, examples = [], []
    with pytest.MonkeyPatch.context() as patch:
        split, batches = train.split, train.EpochBatches
        patch.setattr(train, "split", lambda *given: splits.append(split(*given)) or splits[-1])
        patch.setattr(train, "EpochBatches", lambda texts, *more: examples.extend(texts) or batches(texts, *more))
        run = run_train(folder, "parallelspec-eagle", *FLAGS)
    return folder, run, examples, splits[0]


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, at: int) -> None:
    """Have the call with this number fail as Ctrl-C does."""
    original, calls = getattr(owner, name), 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


def test_a_drafter_is_trained_without_held_out_texts_measured_and_exported(trained: Trained) -> None:
    folder, run, examples, split = trained
    assert examples == split.train
    assert {example.source for example in split.held_out}.isdisjoint(example.source for example in examples)
    assert run.status == 0, run.err
    document = run.document
    assert document == json.loads((folder / "out" / "training.json").read_text())
    assert document["training"]["steps"] == 4
    texts = document["texts"]
    assert texts["train"] + texts["held_out"] + texts["too_short"] + texts["shared_with_held_out"] == N_PROMPTS + 5
    for kind in ("greedy", "sampled"):
        found = document["held_out"][kind]
        assert len(found["by_depth"]) == 5
        chain = torch.tensor(found["by_depth"]).cumprod(0).sum()
        assert found["tau"] == pytest.approx(1 + float(chain), abs=1e-2)
    assert "| tau" in run.out
    assert run.out.split("{")[0].strip() in (folder / "out" / "README.md").read_text()
    drafter = drafter_in(folder)
    assert (drafter.spec.method, drafter.spec.n_drafts) == ("parallelspec-eagle", 5)
    assert sum(t.numel() for t in drafter.tensors.values()) == document["weights"]


@pytest.mark.parametrize("method", ["parallelspec-medusa", pytest.param("dflash", marks=pytest.mark.matrix)])
def test_an_interrupted_training_that_continues_equals_an_uninterrupted_one(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--steps", 4, "--checkpoint-every", 0, "--drafts", 3)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run_train(whole, method, *flags).status == 0
    for owner, name, at in ((Engine, "step", 20), (DraftLoss, "__call__", 3)):
        with monkeypatch.context() as patch:
            interrupt(patch, owner, name, at)
            assert run_train(parts, method, *flags).status == 130
    assert not (parts / "out" / "config.json").exists()
    with monkeypatch.context() as patch:
        interrupt(patch, Engine, "step", 1)  # no answer is written twice
        run = run_train(parts, method, *flags)
    assert run.document["training"]["steps"] == 4
    expected, found = drafter_in(whole).tensors, drafter_in(parts).tensors
    for name, weight in expected.items():
        assert torch.equal(weight, found[name]), name
    measured = json.loads((whole / "out" / "training.json").read_text())["held_out"]
    assert run.document["held_out"] == measured


def test_half_precision_trains_float32_weights_for_the_vocabulary_of_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[DraftLoss] = []
    original = DraftLoss.__call__
    monkeypatch.setattr(DraftLoss, "__call__", lambda loss, *rest: losses.append(loss) or original(loss, *rest))
    run = run_train(tmp_path, "eagle", "--steps", 1, "--dtype", "bfloat16", "--draft-vocab", 40)
    assert run.status == 0, run.err
    assert run.document["training"]["dtype"] == "bfloat16"
    assert {weight.dtype for weight in losses[0].network.parameters()} == {torch.float32}
    drafter = drafter_in(tmp_path)
    assert {weight.dtype for weight in drafter.tensors.values()} == {torch.bfloat16}
    assert drafter.draft_ids is not None
    lines = (tmp_path / "out/work/answers.jsonl").read_text().splitlines()[1:]
    assert set(drafter.draft_ids.tolist()) <= {token for line in lines for token in json.loads(line)["answer"]}


def test_drafters_of_a_target_share_texts_and_states(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, first, *_ = trained
    interrupt(monkeypatch, Engine, "step", 1)
    interrupt(monkeypatch, WholeTexts, "states", 1)
    monkeypatch.setattr(train, "is_default", lambda _: True)
    shared = ("--work", folder / "out" / "work", "--out", tmp_path / "out", "--draft-vocab", 40)
    run = run_train(folder, "eagle", *FLAGS, *shared)
    assert run.status == 0, run.err
    assert run.document["texts"] == first.document["texts"]
    files = {"checkpoint.pt", "training.json", "README.md", "training.png", "speculators"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == files | {"config.json", "model.safetensors"}
    drafter, target = drafter_in(tmp_path), load_spec(saved_checkpoint())
    assert (drafter.spec.uses_part_of_target_head, drafter.spec.draft_vocab_size, drafter.layout) == (
        True,
        40,
        "spectra",
    )
    other = read_drafter(tmp_path / "out" / "speculators", target)
    config = json.loads((tmp_path / "out" / "speculators" / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == HUB_ID
    head = load_file(saved_checkpoint() / "model.safetensors")["lm_head.weight"]
    assert other.draft_ids.tolist() == drafter.draft_ids.tolist()
    expected = drafter.tensors | {"head.weight": head[drafter.draft_ids].bfloat16()}
    assert other.tensors.keys() == expected.keys()
    assert all(other.tensors[name].equal(tensor) for name, tensor in expected.items())


def test_a_work_folder_of_another_training_is_refused(trained: Trained) -> None:
    folder = trained[0]
    for flags, named in (
        (("--drafts", 3), "drafter n_drafts 5, not 3"),
        (("--labels", "soft"), "loss labels 'hard', not 'soft'"),
        (("--seed", 1), "holds records of other settings (seed: 0 there, 1 now"),
        (("--limit", 20), "has a training with texts (hash)"),
        (("--dtype", "bfloat16"), "has a training with target dtype 'torch.float32', not 'torch.bfloat16'"),
    ):
        run = run_train(folder, "parallelspec-eagle", *FLAGS, *flags)
        assert run.status == 2
        assert named in run.err


@pytest.mark.parametrize("n_full", [1, 2])
def test_without_room_for_all_layers_only_its_own_are_stored_or_none(
    n_full: int, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = CapturedStates.add, iter(range(n_full))
    monkeypatch.setattr(CapturedStates, "add", lambda *given: next(calls, None) is None and original(*given))
    answers = ("--answers", trained[0] / "out" / "work" / "answers.jsonl", "--out", tmp_path / "out")
    run = run_cli("train", "--method", "medusa", "--target", saved_checkpoint(), "--steps", 1, *answers)
    assert run.status == 0, run.err
    stored = [file.name for file in (tmp_path / "out" / "work").glob("*/*.bf16")]
    assert stored == (["final.bf16"] if n_full == 1 else [])
    assert ("each training step computes states again" in run.err) == (n_full == 2)


@pytest.mark.matrix
@pytest.mark.parametrize("method", ["eagle", "medusa"])  # both copy the head, which is never quantized
def test_a_drafter_of_a_quantized_target_is_exported(method: str, tmp_path: Path) -> None:
    run = run_train(tmp_path, method, "--steps", 1, "--quantization", "int8")
    assert run.status == 0, run.err
    assert (tmp_path / "out" / "speculators").exists() == (method == "eagle")
    run = run_train(tmp_path, method, "--steps", 1)
    assert "has a training with target quantization 'int8', not None" in run.err


def test_given_answers_are_trained_on(trained: Trained, tmp_path: Path) -> None:
    folder, run, *_ = trained
    known = run.document["texts"]
    train_medusa = ("train", "--method", "medusa", "--target", saved_checkpoint(), "--out", tmp_path / "out")
    answers = ("--answers", folder / "out" / "work" / "answers.jsonl", "--max-length", 64, "--held-out", 0.25)
    run = run_cli(*train_medusa, "--steps", 1, *answers)
    assert run.status == 0, run.err
    assert {**run.document["texts"], "prompts": 0, "answers": 0} == {**known, "prompts": 0, "answers": 0}
