"""AdaPLD against scans of the whole text and of all states."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from engine.composer import compose
from engine.protocol import Artefacts, Outcome
from engine.tree import EMPTY_TREE
from speculators.peers.adapld import AdaPld, AdaPldConfig
from speculators.testing import HashTarget
from tests.speculators.drafts import follow, tokens_of, view

DIMS = 6


class LiteralAdaPld:
    """Keeps all states and the successors of every token, and scans the text."""

    def __init__(self, config):
        self.config, self.states, self.successors = config, [], {}
        self.rng = np.random.default_rng(1)

    def learn(self, context, ids):
        self.successors[context[-1]] = ids[: self.config.top_k]

    def forward(self, tokens):
        """Return states that depend on the token and on chance."""
        rows = np.array([[np.sin(token * (i + 1)) for i in range(DIMS)] for token in tokens], np.float32)
        rows += 0.3 * self.rng.standard_normal(rows.shape).astype(np.float32)
        self.states.extend(rows)
        return Artefacts(rows)

    def most_similar(self, positions):
        """Return the position with the state most similar to the last one, and the cosine."""
        rows = [row / np.linalg.norm(row) for row in self.states]
        cosines = [float(rows[position] @ rows[-1]) for position in positions]
        best = int(np.argmax(cosines))
        return positions[best], cosines[best]

    def span(self, text):
        config, t = self.config, len(text)
        for n in range(min(config.ngram_max, t - 1), config.ngram_min - 1, -1):
            ends = [end for end in range(n, t) if text[end - n : end] == text[t - n :]]
            if ends:
                with_state = [end - 2 for end in ends if end >= 2]
                start = self.most_similar(with_state)[0] + 2 if with_state else ends[-1]
                return text[start : start + config.draft_tokens]
        if t < 3:
            return []
        position, cosine = self.most_similar(range(t - 2))
        return text[position + 2 :][: config.draft_tokens] if cosine >= config.least else []

    def draft(self, text, budget):
        span = self.span(text)
        paths = [tuple(span[: i + 1]) for i in range(len(span))]
        others = [token for token in self.successors.get(text[-1], []) if [token] != span[:1]]
        for token in others[: self.config.branches]:
            paths.append((token,))
            places = [i + 1 for i in range(len(text) - 1) if text[i] == token]
            if places:
                known = [place - 2 for place in places if place >= 2]
                place = self.most_similar(known)[0] + 2 if known else places[-1]
                paths.append((token, text[place]))
        return paths


@pytest.mark.parametrize(("ngram_min", "n_successors"), [(1, 3), (2, 1), (2, 3), (4, 1)])
def test_every_draft_equals_scans_of_text_and_states(ngram_min, n_successors):
    config = AdaPldConfig(layer=0, ngram_max=4, ngram_min=ngram_min, draft_tokens=5, branches=3, top_k=4, least=0.6)
    prompt = [Random(0).randrange(20) for _ in range(30)]
    follow(AdaPld(config), LiteralAdaPld(config), HashTarget(64, n_successors), prompt, 30, 64)


def test_without_states_the_latest_match_is_copied():
    adapld, request = AdaPld(AdaPldConfig(layer=0, branches=0)), view([1, 2, 3, 1, 2, 4, 1])
    adapld.begin(request)
    request.context.extend([2])
    adapld.observe(request, Outcome([2], EMPTY_TREE))
    assert [branch.tokens for branch in adapld.propose(request, 2)] == [[4, 1]]
    request.context.extend([9])
    adapld.observe(request, Outcome([9], EMPTY_TREE))
    assert adapld.propose(request, 8) == []  # nothing matches, and no state is known


def test_the_budget_cuts_alternatives_before_the_copied_tokens():
    target, adapld, request = HashTarget(64), AdaPld(AdaPldConfig(layer=0, draft_tokens=4)), view([5, 6, 7, 8, 5])
    adapld.begin(request)
    request.context.extend([6])
    adapld.observe(request, Outcome([6], EMPTY_TREE, prompt_top_ids=np.array([[1] * 8] * 5, np.int32)))
    for budget, expected in ((2, [7, 8]), (4, [7, 8, 5, 6])):
        assert adapld.propose(request, budget)[0].tokens == expected
    outcome = target.score(request.context.view.tolist(), compose(adapld.propose(request, 4), 4))
    request.context.extend(outcome.tokens)
    adapld.observe(request, outcome)
    for budget in range(1, 30):
        assert len(tokens_of(adapld.propose(request, budget))) <= budget
