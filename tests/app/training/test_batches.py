"""Captured states equal those of Hugging Face; batches hold every text once."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import cycle

import pytest
import torch

from app.training.batches import EpochBatches, compute_states, in_batches
from app.training.examples import Example
from app.training.new_drafter import target_parts
from engine.target_model.whole_texts import WholeTexts
from tests.support.tiny_models import FAMILIES, random_prompt, saved_model, tiny_model

TAPS = (2, -1, 0)


def loaded(family: str, n_devices: int = 1) -> WholeTexts:
    return WholeTexts.load(saved_model(family), [torch.device("cpu")] * n_devices, torch.float32, 64)


def some(n: int) -> list[Example]:
    return [Example(f"{i}", random_prompt(i, 9 + 5 * (i % 9)), 2 + i % 4) for i in range(n)]


@pytest.mark.parametrize(("family", "n_devices"), list(zip(FAMILIES, cycle([1, 3]), strict=False)))
def test_captured_states_equal_those_of_hugging_face(family: str, n_devices: int) -> None:
    model, examples = loaded(family, n_devices), some(7)
    texts = compute_states(model, TAPS, examples)
    assert texts.tapped is not None
    assert texts.n_tokens == sum(len(example.tokens) for example in examples)
    parts = target_parts(model)
    for i, example in enumerate(examples):
        tokens = torch.tensor(example.tokens)
        with torch.no_grad():
            wanted = tiny_model(family)(tokens[None], output_hidden_states=True)
        n, states = len(tokens), wanted.hidden_states  # the last of them is normed
        assert texts.tokens[i, :n].equal(tokens)
        assert texts.weights[i].nonzero().flatten().tolist() == list(range(example.first, n))
        tapped = torch.cat([states[tap + 1][0] for tap in TAPS], dim=-1)
        torch.testing.assert_close(texts.tapped[i, :n], tapped, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(texts.final[i, :n], states[-1][0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(parts.head(texts.final[i, :n]), wanted.logits[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(parts.embed(tokens), states[0][0])


@pytest.mark.parametrize("ids", [None, torch.tensor([3, 8, 40])], ids=["all tokens", "some tokens"])
def test_gradients_pass_through_the_head_of_the_target_and_stop_at_its_weights(ids: torch.Tensor | None) -> None:
    parts = target_parts(loaded("qwen3"), ids)
    states = torch.randn(3, 32, requires_grad=True)
    logits = parts.head(states)
    torch.testing.assert_close(logits, states @ tiny_model("qwen3").lm_head.weight[... if ids is None else ids].T)
    logits.logsumexp(-1).sum().backward()
    assert states.grad is not None
    assert states.grad.abs().max() > 0
    assert not parts.embed(torch.tensor([1])).requires_grad


def test_an_epoch_has_every_text_once_and_the_next_has_another_order() -> None:
    examples = some(23)
    batches, again = (EpochBatches(examples, 4, seed=3) for _ in range(2))
    assert batches.n_batches == 6
    epochs = []
    for epoch in range(2):
        found = [batches.at(6 * epoch + place) for place in range(6)]
        epochs.append([tuple(example.tokens) for batch in found for example in batch])
        sizes = [(len(batch) * max(len(e.tokens) for e in batch), sum(len(e.tokens) for e in batch)) for batch in found]
        assert sum(padded - size for padded, size in sizes) < 0.2 * sum(padded for padded, _ in sizes)
    assert epochs[0] != epochs[1]
    assert Counter(epochs[0]) == Counter(epochs[1]) == Counter(tuple(example.tokens) for example in examples)
    assert again.at(8) == batches.at(8)  # a resumed training begins in the middle


def test_texts_to_measure_are_read_once_in_batches() -> None:
    examples = some(23)
    once = list(in_batches(partial(compute_states, loaded("llama"), ()), examples, 9))
    assert [len(texts.tokens) for texts in once] == [9, 9, 5]
    assert sum(float(texts.weights.sum()) for texts in once) == sum(len(example.written) for example in examples)
