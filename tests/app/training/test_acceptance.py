"""Held-out acceptance equals counts taken root by root."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.training.acceptance import along_chains, measure_acceptance
from app.training.batches import Roots, choose_roots
from app.training.losses import Labeller
from tests.support.naive_losses import LENGTH, WRITTEN, drafts_of, ids_of, softmax, some_texts
from tests.support.tiny_drafters import CUT, DFLASH, EAGLE, MEDUSA, PARALLEL, tiny_drafter

SPECS = {
    "medusa": MEDUSA,
    "eagle": EAGLE["eagle"],
    "eagle 3": EAGLE["eagle 3"],
    "p-eagle": PARALLEL["p-eagle"],
    "dspark": DFLASH["dspark"],
    "eagle, cut": CUT["eagle, cut"],
}


@pytest.mark.parametrize("name", SPECS)
def test_measured_acceptance_equals_the_count_over_roots(name: str) -> None:
    spec, n_depths, temperature = SPECS[name], 3, 0.8
    drafter, texts, ids = tiny_drafter(spec, ids_of(spec)), some_texts(spec), ids_of(spec)
    head = torch.from_numpy(drafter.head)
    at = torch.arange(1, LENGTH).repeat(2, 1)
    everywhere = Roots(at, torch.ones_like(at, dtype=torch.bool))
    own = list(range(spec.vocab_size)) if ids is None else ids.tolist()
    matched: dict[tuple[int, int], list[float]] = {}
    overlaps: dict[tuple[int, int], list[float]] = {}
    for _, draft in drafts_of(drafter, texts, everywhere, n_depths):
        place = draft.text, draft.root
        p = softmax(drafter.head @ texts.final[draft.text, draft.at - 1].numpy() / temperature)
        q = np.zeros(spec.vocab_size)
        q[own] = softmax(draft.scores / temperature)
        matched.setdefault(place, []).append(float(own[int(draft.q.argmax())] == texts.tokens[draft.text, draft.at]))
        overlaps.setdefault(place, []).append(float(np.minimum(p, q).sum()))
    for counted, t in ((matched, 0.0), (overlaps, temperature)):
        labeller = Labeller(lambda states: states @ head.T, "soft", ids, t or 1.0, is_whole=True)
        seen = measure_acceptance(drafter.network, [texts, texts], n_depths, labeller, temperature=t)
        whole = [chances for chances in counted.values() if len(chances) == n_depths]
        assert seen["roots"] == 2 * len(whole) > 4
        assert seen["tau"] - 1 == pytest.approx(np.mean([sum(np.cumprod(chances)) for chances in whole]), abs=1e-9)
        for depth in range(n_depths):
            before = [np.prod(chances[:depth]) for chances in whole]
            here = [np.prod(chances[: depth + 1]) for chances in whole]
            expected = sum(here) / sum(before) if sum(before) else 0.0
            assert seen["by_depth"][depth] == pytest.approx(expected, abs=1e-9)


def test_acceptance_is_conditional() -> None:
    accepted = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]).double()
    found = along_chains(accepted)
    assert found["by_depth"] == [3 / 4, 2 / 3, 1 / 2]
    assert found["tau"] == 1 + (2 + 1 + 0 + 3) / 4
    assert along_chains(torch.zeros(3, 2))["by_depth"] == [0.0, 0.0]
    assert along_chains(torch.zeros(0, 2))["tau"] == 1.0


def test_roots_are_drawn_where_the_next_token_counts() -> None:
    texts = some_texts(MEDUSA)
    few = choose_roots(texts, 3, torch.Generator().manual_seed(0))
    assert few.counted.all()
    all_of_them = choose_roots(texts, 64, torch.Generator().manual_seed(0))
    for text, (begin, end) in enumerate(WRITTEN):
        drawn = all_of_them.at[text][all_of_them.counted[text]].tolist()
        assert sorted(drawn) == list(range(begin - 1, end - 1))
        assert set(few.at[text].tolist()) <= set(drawn)
    other = choose_roots(texts, 3, torch.Generator().manual_seed(1))
    assert not torch.equal(few.at, other.at)
