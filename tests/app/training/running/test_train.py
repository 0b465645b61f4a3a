"""``spectra train`` from prompts to a checkpoint, interrupted or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from app.training.data.examples import Example, source_of
from app.training.data.split import Split
from app.training.losses import DraftLoss
from app.training.running import train
from engine.drafter.checkpoint.read import read_drafter
from engine.loop import Engine
from engine.model.loader import load_spec
from tests.support.cli_run import run_cli
from tests.support.tiny_models import saved_checkpoint
from tests.support.training_runs import N_PROMPTS, run_train


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_drafter(folder / "out", load_spec(saved_checkpoint())).tensors


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


@pytest.mark.parametrize("method", ["parallelspec-eagle", "eagle"])
def test_a_drafter_is_trained_measured_and_exported(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_train(capsys, tmp_path, method, "--steps", 6, "--held-out", 0.25)
    assert run.status == 0, run.err
    document = run.document
    assert document == json.loads((tmp_path / "out" / "training.json").read_text())
    assert document["training"]["steps"] == 6
    texts = document["texts"]
    assert texts["train"] + texts["held_out"] + texts["too_short"] + texts["shared_with_held_out"] == N_PROMPTS + 5
    depths = 5 if method == "parallelspec-eagle" else 7
    for kind in ("greedy", "sampled"):
        found = document["held_out"][kind]
        assert len(found["by_depth"]) == depths
        chain = torch.tensor(found["by_depth"]).cumprod(0).sum()
        assert found["tau"] == pytest.approx(1 + float(chain), abs=1e-2)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| tau" in run.out
    assert run.out.split("{")[0].strip() in card
    drafter = read_drafter(tmp_path / "out", load_spec(saved_checkpoint()))
    assert (drafter.spec.method, drafter.spec.n_drafts) == (method, 5 if method == "parallelspec-eagle" else None)
    assert sum(t.numel() for t in drafter.tensors.values()) == document["weights"]


@pytest.mark.parametrize("method", ["parallelspec-medusa", "dflash"])
def test_a_training_that_is_killed_and_goes_on_is_the_uninterrupted_one(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--steps", 5, "--checkpoint-every", 0, "--drafts", 3)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    assert run_train(capsys, tmp_path / "whole", method, *flags).status == 0
    with monkeypatch.context() as patch:
        interrupt(patch, Engine, "step", 20)
        assert run_train(capsys, tmp_path / "parts", method, *flags).status == 130
    with monkeypatch.context() as patch:
        interrupt(patch, DraftLoss, "__call__", 4)
        assert run_train(capsys, tmp_path / "parts", method, *flags).status == 130
    assert not (tmp_path / "parts" / "out" / "config.json").exists()
    with monkeypatch.context() as patch:
        interrupt(patch, Engine, "step", 1)  # no answer is written twice
        run = run_train(capsys, tmp_path / "parts", method, *flags)
    assert run.document["training"]["steps"] == 5
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for name, weight in whole.items():
        assert torch.equal(weight, parts[name]), name
    measured = json.loads((tmp_path / "whole" / "out" / "training.json").read_text())["held_out"]
    assert run.document["held_out"] == measured


@pytest.mark.parametrize("method", ["eagle", "dflash"])
def test_half_precision_trains_float32_weights(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[DraftLoss] = []
    original = DraftLoss.__call__
    monkeypatch.setattr(DraftLoss, "__call__", lambda loss, *rest: kept.append(loss) or original(loss, *rest))
    run = run_train(capsys, tmp_path, method, "--steps", 2, "--dtype", "bfloat16", "--draft-vocab", 60)
    assert run.status == 0, run.err
    assert run.document["training"]["dtype"] == "bfloat16"
    assert {weight.dtype for weight in kept[0].network.parameters()} == {torch.float32}
    assert {weight.dtype for weight in weights(tmp_path).values()} == {torch.bfloat16}


def test_nothing_held_out_is_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Split] = []
    trained: list[Example] = []
    original_split, original_stream = train.split, train.TextStream

    def remember(*arguments: Any) -> Split:
        seen.append(original_split(*arguments))
        return seen[-1]

    def stream(examples: list[Example], *arguments: Any) -> Any:
        trained.extend(examples)
        return original_stream(examples, *arguments)

    monkeypatch.setattr(train, "split", remember)
    monkeypatch.setattr(train, "TextStream", stream)
    assert run_train(capsys, tmp_path, "medusa", "--steps", 2, "--samples", 2, "--held-out", 0.3).status == 0
    (split,) = seen
    held = {example.source for example in split.held_out}
    assert trained == split.train
    assert 0 < len(held) < N_PROMPTS
    assert held.isdisjoint(example.source for example in trained)
    lines = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert held | {e.source for e in trained} <= {source_of(line["turns"][0]) for line in lines}


def test_a_smaller_vocabulary_is_that_of_the_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_train(capsys, tmp_path, "eagle", "--steps", 1, "--draft-vocab", 40)
    assert run.status == 0, run.err
    drafter = read_drafter(tmp_path / "out", load_spec(saved_checkpoint()))
    assert drafter.draft_ids is not None
    written = [
        json.loads(line)["answer"] for line in (tmp_path / "out/work/answers.jsonl").read_text().splitlines()[1:]
    ]
    assert set(drafter.draft_ids.tolist()) <= {token for answer in written for token in answer}


def test_a_work_folder_of_another_training_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(capsys, tmp_path, "medusa", "--steps", 1, "--drafts", 2).status == 0
    for flags, named in (
        (("--drafts", 3), "drafter's n_drafts 2, not 3"),
        (("--drafts", 2, "--labels", "soft"), "loss's labels 'hard', not 'soft'"),
        (("--drafts", 2, "--seed", 1), "answers written with seed 0, not 1"),
        (("--drafts", 2, "--limit", 20), "the texts are not those"),
    ):
        run = run_train(capsys, tmp_path, "medusa", "--steps", 1, *flags)
        assert run.status == 2
        assert named in run.err
    assert run_train(capsys, tmp_path, "medusa", "--steps", 1, "--drafts", 3, "--restart").status == 0


@pytest.mark.parametrize(
    ("method", "flags", "says"),
    [
        ("medusa", ("--regression", 1), "regression is 1.0: medusa drafts no states"),
        ("medusa", ("--taps", "1"), "--taps is given, but medusa has no such thing"),
        ("eagle", ("--taps", "1,9"), "--taps is 1,9; layers of this target are 0 to 3"),
        ("eagle", ("--train-depths", 0), "--train-depths is 0; it must be at least 1"),
        ("p-eagle", ("--train-depths", 2), "it is for eagle"),
        ("dflash", ("--depth-decay", -1), "--depth-decay is -1.0; it must be at least 0"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_answered(
    method: str, flags: tuple[object, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_train(capsys, tmp_path, method, *flags)
    assert run.status == 2
    assert says in run.err
    assert not (tmp_path / "out" / "work" / "answers.jsonl").exists()


def test_existing_answers_and_texts_are_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(capsys, tmp_path, "medusa", "--steps", 1).status == 0
    known = json.loads((tmp_path / "out" / "training.json").read_text())["texts"]
    (tmp_path / "texts").mkdir()
    for i in range(6):
        (tmp_path / "texts" / f"{i}.txt").write_text("".join(chr(97 + (i * k + k * k) % 26) for k in range(60)))
    where = ("--target", saved_checkpoint(), "--out", tmp_path / "other", "--steps", 1)

    answers = ("--answers", tmp_path / "out" / "work" / "answers.jsonl", "--max-length", 64)
    run = run_cli(capsys, "train", "--method", "medusa", *where, *answers)
    assert run.status == 0, run.err
    assert {**run.document["texts"], "prompts": 0, "answers": 0} == {**known, "prompts": 0, "answers": 0}
    run = run_cli(
        capsys, "train", "--method", "medusa", *where, "--texts", tmp_path / "texts", "--held-out", 0.4, "--restart"
    )
    assert run.status == 0, run.err
    assert run.document["texts"]["train"] + run.document["texts"]["held_out"] == 6
    assert run.document["held_out"]["greedy"] is None
