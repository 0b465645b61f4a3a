"""Choices from rows: several draws, reduced vocabularies, and rows that are independent of each other."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.drafter.trees.choice import Ask, DraftVocabulary, choose, draft_randomness
from engine.sampling.history import History
from engine.sampling.noise import KeyedRandom
from engine.sampling.params import SamplingParams
from engine.sampling.randomness import Randomness
from tests.support.enumeration import every_outcome
from tests.support.pretended_device import pretended_device

VOCAB = 30
IDS = [1, 2, 3, 5, 8, 9, 10, 13, 17, 20, 21, 29]
SETTINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9, seed=11),
    "truncated": SamplingParams(temperature=1.2, top_p=0.8, top_k=5, min_p=0.02, seed=3, choice=2),
    "penalties": SamplingParams(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.4, seed=5),
    "greedy with penalties": SamplingParams(presence_penalty=1.0, repetition_penalty=1.2),
    "biased": SamplingParams(temperature=1.0, logit_bias={8: 3.0, 7: 5.0}, min_tokens=6, stop_ids=(9, 4), seed=1),
    "drawn": SamplingParams(temperature=0.8, verification="rejection", seed=4),
    "drawn, truncated": SamplingParams(temperature=0.8, top_k=4, logit_bias={8: 2.0}, verification="rejection", seed=4),
    "drawn with penalties": SamplingParams(temperature=0.8, frequency_penalty=0.9, verification="rejection", seed=4),
}


def ask(params: SamplingParams, k: int = 4, position: int = 12) -> Ask:
    return Ask(params, History([5, 8, 8], [10, 1, 10]), position, k)


def rows(n: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * 2


def test_draws_of_one_ask_are_independent() -> None:
    logits, params = rows(1, 3), SETTINGS["drawn"]
    q = torch.softmax(logits[0].double() / 0.8, -1).numpy()
    found: dict[tuple[int, ...], float] = defaultdict(float)

    def program(random: Randomness) -> tuple[int, ...]:
        [choice] = choose(logits, [ask(params, 2)], lambda key: random)
        return tuple(choice.tokens)

    for tokens, weight in every_outcome(program):
        found[tokens] += weight
    assert found == pytest.approx({(a, b): q[a] * q[b] for a in range(3) for b in range(3)}, abs=1e-6)


def test_more_draws_do_not_change_the_first() -> None:
    logits = rows(1, VOCAB)
    [one] = choose(logits, [ask(SETTINGS["drawn"], 1)])
    [many] = choose(logits, [ask(SETTINGS["drawn"], 40)])
    assert many.tokens[:1] == one.tokens
    assert len(many.tokens) == 40 > len(set(many.tokens)), "draws may repeat"
    assert many.q is not None
    assert many.q.shape == (VOCAB,)
    assert many.scores == []
    random = draft_randomness((4, 0, 12))
    assert many.tokens == [random.draw(many.q.astype(np.float64)) for _ in range(40)]


@pytest.mark.parametrize("reduced", [True, False])
def test_no_row_depends_on_another_or_on_the_device(reduced: bool) -> None:
    vocabulary = DraftVocabulary.of(torch.tensor(IDS), VOCAB) if reduced else None
    asks = [ask(params, k) for k, params in enumerate([*SETTINGS.values()] * 2, 1)]
    logits = rows(len(asks), len(IDS) if reduced else VOCAB)
    before = logits.clone()
    together = choose(logits, asks, vocabulary=vocabulary)
    assert torch.equal(logits, before)
    with pretended_device():
        on_device = choose(logits, asks, vocabulary=vocabulary)
    for i, one in enumerate(asks):
        [alone] = choose(logits[i : i + 1], [one], vocabulary=vocabulary)
        assert together[i].tokens == alone.tokens == on_device[i].tokens
        assert together[i].scores == pytest.approx(alone.scores, rel=1e-6)
        assert together[i].scores == pytest.approx(on_device[i].scores, rel=1e-5)
        if alone.q is not None:
            np.testing.assert_array_equal(together[i].q, alone.q)
    assert choose(logits[:0], [], vocabulary=vocabulary) == []


@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_no_token_is_chosen_where_none_can_be_drawn(name: str) -> None:
    vocabulary = DraftVocabulary.of(torch.tensor(IDS), VOCAB)
    outside = structs.replace(SETTINGS[name], allowed_ids=(4, 6))
    some = structs.replace(SETTINGS[name], allowed_ids=(4, 6, 8))
    none, one = choose(rows(2, len(IDS)), [ask(outside), ask(some)], vocabulary=vocabulary)
    assert (none.tokens, none.scores) == ([], [])
    assert (one.tokens, one.scores) == ([8], [1.0])


def test_drafts_and_verification_share_no_random_number() -> None:
    logits = torch.zeros(1, 2)
    params = [structs.replace(SETTINGS["drawn"], seed=seed) for seed in range(400)]
    drawn = np.array([choose(logits, [ask(one, 1)])[0].tokens[0] for one in params])
    verified = np.array([KeyedRandom((seed, 0, 12)).draw(np.ones(2)) for seed in range(400)])
    assert abs(np.corrcoef(drawn, verified)[0, 1]) < 0.2
