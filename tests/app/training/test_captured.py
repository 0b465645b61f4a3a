"""States on disk equal computed ones; each text is captured once, also by a capture that continues a killed one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from app.training import captured
from app.training.batches import compute_states
from app.training.captured import CapturedStates
from app.training.examples import Example
from engine.errors import ConfigError
from engine.target_model.whole_texts import WholeTexts
from tests.support.tiny_models import random_prompt, saved_model

TAPS = (-1, 1, 3)
EXAMPLES = [Example(f"{i}", random_prompt(i, 9 + 5 * (i % 9)), 2 + i % 4) for i in range(12)]


@pytest.fixture(scope="module")
def model() -> WholeTexts:
    return WholeTexts.load(saved_model("llama"), [torch.device("cpu")], torch.float32, 64)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of texts of every forward pass; one takes at most 100 tokens with all layers."""
    sizes: list[int] = []
    original = WholeTexts.states
    monkeypatch.setattr(captured, "MAX_PASS_BYTES", 100 * 4 * 32 * (1 + len(TAPS)))
    monkeypatch.setattr(WholeTexts, "states", lambda one, ids, taps: sizes.append(len(ids)) or original(one, ids, taps))
    return sizes


def states_of(model: WholeTexts, folder: Path, model_hash: str = "a") -> CapturedStates:
    return CapturedStates(folder, model, TAPS, {"model": model_hash})


def check(stored: CapturedStates, model: WholeTexts, examples: Sequence[Example], taps: tuple[int, ...]) -> None:
    found, computed = stored.read(examples, taps), compute_states(model, taps, examples)
    assert found.tokens.equal(computed.tokens)
    assert found.weights.equal(computed.weights)
    assert (found.tapped is None) == (computed.tapped is None) == (not taps)
    for one, other in ((found.final, computed.final), (found.tapped, computed.tapped)):
        for i, example in enumerate(examples if one is not None else ()):
            n = len(example.tokens)
            torch.testing.assert_close(one[i, :n], other[i, :n], rtol=2**-8, atol=1e-5)


def test_stored_states_are_the_computed_ones_and_are_computed_once(
    model: WholeTexts, passes: list[int], tmp_path: Path
) -> None:
    stored = states_of(model, tmp_path)
    assert stored.add(EXAMPLES[:7])
    assert (sum(passes), len(passes) > 2) == (7, True)
    again = states_of(model, tmp_path)
    for examples, n_captured in ((EXAMPLES[:7], 7), (EXAMPLES[3:5] * 2, 7), (EXAMPLES, 12)):
        assert (again.add(examples), sum(passes)) == (True, n_captured)
    for taps in ((), TAPS, (3, -1)):
        check(stored, model, EXAMPLES[2:6], taps)
        check(again, model, EXAMPLES[::-2], taps)


@pytest.mark.parametrize("n_indexed", [0, 4])
def test_a_killed_capture_continues_after_its_last_text(
    n_indexed: int, model: WholeTexts, passes: list[int], tmp_path: Path
) -> None:
    assert states_of(model, tmp_path).add(EXAMPLES)
    [index] = tmp_path.glob("*/texts.jsonl")
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join(lines[: 1 + n_indexed]) + lines[1 + n_indexed][:20])
    n_rows = sum(json.loads(line)["n"] for line in lines[1 : 1 + n_indexed])
    for number, file in enumerate(sorted(index.parent.glob("*.bf16"))):  # with rows of the text that has no line
        file.write_bytes(file.read_bytes()[: n_rows * 32 * 2] + b"odd" * 100 * number)
    passes.clear()
    stored = states_of(model, tmp_path)
    assert stored.add(EXAMPLES)
    assert sum(passes) == 12 - n_indexed
    check(stored, model, EXAMPLES, TAPS)


def test_states_of_another_model_have_a_folder_of_their_own(
    model: WholeTexts, passes: list[int], tmp_path: Path
) -> None:
    for model_hash, n_captured in (("a", 12), ("b", 12), ("a", 0)):
        passes.clear()
        stored = states_of(model, tmp_path, model_hash)
        assert stored.add(EXAMPLES)
        assert sum(passes) == n_captured
        check(stored, model, EXAMPLES, TAPS)


def test_a_shorter_file_of_states_is_refused_before_anything_is_written(model: WholeTexts, tmp_path: Path) -> None:
    assert states_of(model, tmp_path).add(EXAMPLES[:5])
    [file] = tmp_path.glob("*/1.bf16")
    file.write_bytes(file.read_bytes()[:-64])
    before = {path: path.read_bytes() for path in file.parent.iterdir()}
    for n in (5, 12):
        with pytest.raises(ConfigError, match=r"/1\.bf16 has \d+ bytes, .*; remove this folder"):
            states_of(model, tmp_path).add(EXAMPLES[:n])
    assert {path: path.read_bytes() for path in file.parent.iterdir()} == before


def test_states_take_at_most_half_of_the_free_disk(
    model: WholeTexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = len(EXAMPLES[0].tokens) * 32 * 2 * (1 + len(TAPS))
    stored = states_of(model, tmp_path)
    for free, has_room in ((2 * size - 1, False), (2 * size, True)):
        monkeypatch.setattr(captured.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert stored.add(EXAMPLES[:1]) == has_room
        assert any(tmp_path.rglob("*.bf16")) == has_room
        warning = f"spectra: states need 0.0 GiB, but {next(tmp_path.iterdir())} has 0.0 GiB free, of which 50% may be"
        assert (warning in capsys.readouterr().err) != has_room
    monkeypatch.setattr(captured.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert stored.add(EXAMPLES[:1])  # takes no more room
