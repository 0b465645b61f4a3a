"""Perplexities of a batch against what Hugging Face's own logits say of each text alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.target import perplexity
from engine.target.perplexity import Perplexity
from tests.support.tiny_models import saved_model, tiny_model

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
LENGTHS = (1, 2, 5, 23, 24, 25, 60, 60, 131)  # tokens; the sliding windows are 24
CPU = torch.device("cpu")
Ids = npt.NDArray[np.int32]


def random_texts(seed: int, lengths: Sequence[int] = LENGTHS) -> list[Ids]:
    random = np.random.default_rng(seed)
    return [random.integers(3, 97, n, dtype=np.int32) for n in lengths]


def expected(model: Any, text: Sequence[int], start: int | None) -> float:
    """``exp`` of Hugging Face's mean loss."""
    ids = [start, *text] if start is not None and text[0] != start else [*text]
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, :-1].double()
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]))
    return float(losses.exp())


def load(path: Path, devices: int = 1, start: int | None = 1) -> Perplexity:
    return Perplexity.load(path, [CPU] * devices, torch.float32, 200, start)


@pytest.mark.parametrize("family", FAMILIES)
def test_perplexities_are_hugging_faces_however_texts_are_batched(family: str) -> None:
    texts = random_texts(3)
    wanted = [expected(tiny_model(family), text.tolist(), 1) for text in texts]
    run = load(saved_model(family))
    alone = np.concatenate([run([text]) for text in texts])
    some = np.concatenate([run(texts[:4]), run(texts[4:])])
    for found in (run(texts), run(texts[::-1])[::-1], alone, some):
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_model_spread_over_devices_scores_the_same(family: str) -> None:
    texts = random_texts(4)
    np.testing.assert_array_equal(load(saved_model(family), 3)(texts), load(saved_model(family))(texts))


def test_a_start_token_is_put_where_it_is_missing() -> None:
    text = random_texts(5, [30])[0]
    behind_start = np.concatenate((np.array([1], np.int32), text))
    missing, there = load(saved_model("llama"))([text, behind_start])
    assert missing == pytest.approx(there, rel=1e-5)
    (none,) = load(saved_model("llama"), start=None)([text])
    assert none == pytest.approx(expected(tiny_model("llama"), text.tolist(), None), rel=1e-4)
    assert abs(none / there - 1) > 1e-3


def test_logits_exist_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = random_texts(6)
    whole = load(saved_model("qwen3"))(texts)
    monkeypatch.setattr(perplexity, "ROWS", 7)
    sliced = load(saved_model("qwen3"))
    sizes: list[int] = []
    shard = sliced._model.shards[0]
    logits = shard.logits
    monkeypatch.setattr(shard, "logits", lambda hidden: sizes.append(len(hidden)) or logits(hidden))
    np.testing.assert_allclose(sliced(texts), whole, rtol=1e-5)
    assert max(sizes) == 7
    assert sum(sizes) == sum(LENGTHS)  # nothing for padding, nothing behind a text


def test_half_precision_is_near() -> None:
    texts = random_texts(7, [40, 60, 80])
    half = Perplexity.load(saved_model("qwen2"), [CPU], torch.bfloat16, 200, 1)
    np.testing.assert_allclose(np.log(half(texts)), np.log(load(saved_model("qwen2"))(texts)), rtol=0.05)


def test_what_is_no_number_is_no_likely_text() -> None:
    run = load(saved_model("llama"))
    run._model.shards[0]._norm.weight.data[:] = float("nan")  # type: ignore[union-attr, index]
    assert run(random_texts(8, [9])).tolist() == [float("inf")]


@pytest.mark.parametrize(("text", "start"), [([7], None), ([1], 1), ([], 1)])
def test_a_text_without_a_token_in_context_is_refused(text: list[int], start: int | None) -> None:
    with pytest.raises(ValueError, match="before it"):
        load(saved_model("llama"), start=start)([np.array(text, np.int32)])
