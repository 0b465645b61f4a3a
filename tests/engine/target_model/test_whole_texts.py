"""Perplexities of a batch equal those by Hugging Face's logits of each text alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.target_model import whole_texts
from engine.target_model.whole_texts import Perplexity
from tests.support.tiny_models import saved_model, tiny_model

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
LENGTHS = (1, 2, 5, 23, 24, 25, 60, 60, 131)  # tokens; the sliding windows are 24
CPU = torch.device("cpu")
Ids = npt.NDArray[np.int32]


def random_texts(seed: int, lengths: Sequence[int] = LENGTHS) -> list[Ids]:
    random = np.random.default_rng(seed)
    return [random.integers(3, 97, n, dtype=np.int32) for n in lengths]


def perplexity_of(model: Any, text: Sequence[int], start: int | None) -> float:
    """``exp`` of Hugging Face's mean loss."""
    ids = [start, *text] if start is not None and text[0] != start else [*text]
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, :-1].double()
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]))
    return float(losses.exp())


def load(path: Path, devices: int = 1, start: int | None = 1) -> Perplexity:
    return Perplexity.load(path, [CPU] * devices, torch.float32, 200, start)


@pytest.mark.parametrize("family", FAMILIES)
def test_perplexities_are_hugging_faces_however_texts_are_batched(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = random_texts(3)
    expected = [perplexity_of(tiny_model(family), text.tolist(), 1) for text in texts]
    run = load(saved_model(family))
    some = np.concatenate([run(texts[:4]), run(texts[4:5]), run(texts[5:])])
    spread = load(saved_model(family), devices=3)(texts)
    monkeypatch.setattr(whole_texts, "ROWS", 7)
    for found in (run(texts), run(texts[::-1])[::-1], some, spread):
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_start_token_is_added_where_it_is_missing() -> None:
    text = random_texts(5, [30])[0]
    after_start = np.concatenate((np.array([1], np.int32), text))
    missing, there = load(saved_model("llama"))([text, after_start])
    assert missing == pytest.approx(there, rel=1e-5)
    (none,) = load(saved_model("llama"), start=None)([text])
    assert none == pytest.approx(perplexity_of(tiny_model("llama"), text.tolist(), None), rel=1e-4)
    assert abs(none / there - 1) > 1e-3
    for bare, start in (([7], None), ([1], 1), ([], 1)):
        with pytest.raises(ValueError, match="before it"):
            load(saved_model("llama"), start=start)([np.array(bare, np.int32)])


def test_half_precision_is_near_and_nan_is_infinitely_unlikely() -> None:
    texts = random_texts(7, [40, 60, 80])
    half = Perplexity.load(saved_model("qwen2"), [CPU], torch.bfloat16, 200, 1)
    np.testing.assert_allclose(np.log(half(texts)), np.log(load(saved_model("qwen2"))(texts)), rtol=0.05)
    half._model.shards[0]._norm.weight.data[:] = float("nan")  # type: ignore[union-attr, index]
    assert half(random_texts(8, [9])).tolist() == [float("inf")]
