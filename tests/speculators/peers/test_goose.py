"""GOOSE against a literal Algorithm 1 that scans the text, and what all peers have in common."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculators.peers.goose import Goose, GooseConfig
from speculators.peers.stand import Stand, StandConfig
from speculators.successors.token_recycling import TokenRecycling
from speculators.testing import HashTarget
from tests.speculators.drafts import follow, observe_prompt, paths_of, view

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5, 9]


class LiteralGoose:
    """The published algorithm, written to be read."""

    def __init__(self, config):
        self.config, self.rows = config, {}
        self.ema, self.n_spines = 0.5, 0

    def learn(self, context, ids):
        ids = ids[: self.config.top_k]
        p = np.array([0.5 ** (i + 1) for i in range(len(ids))])
        row = list(zip(ids, (p / p.sum()).tolist(), strict=True))
        self.rows |= {tuple(context[-1:]): row, tuple(context[-2:]): row}

    def successors(self, context):
        return self.rows.get(tuple(context[-2:])) or self.rows.get(tuple(context[-1:])) or []

    def match(self, text, tail):
        """Return chain and agreement by scanning the text for the latest earlier occurrence of every length."""
        starts = {}
        for n in self.config.ngrams:
            ends = [e for e in range(n, len(text)) if list(text[e - n : e]) == list(tail[-n:])]
            if len(tail) >= n and ends:
                starts[n] = ends[-1]
        if not starts:
            return [], 0.0
        start = starts[max(starts)]
        chain = list(text[start : start + self.config.spine])
        agree = sum(text[place] == chain[0] for place in starts.values()) / len(self.config.ngrams)
        return chain, agree * min(1.0, len(chain) / self.config.long_spine)

    def draft(self, text, budget):
        config = self.config
        chain, sure = self.match(text, text)
        if sure > 0.6:
            last = sure
            while len(chain) < int(config.most_nodes * sure):
                more, now = self.match(text, [*text, *chain])
                if not more or (sure >= 1.0 and last < 1.0):
                    break
                chain, last = chain + more, now
        n = min(budget, config.nodes + int(sure * max(config.most_nodes - config.nodes, 0)))
        base = config.ratios[0] if self.ema < 0.2 else config.ratios[1] if self.ema < 0.4 else config.ratios[2]
        spine = chain[: int(n * (base + sure * (1.0 - base)))]
        paths = [tuple(spine[: i + 1]) for i in range(len(spine))]
        left = n - len(spine)
        at_spine = max(1, int(left * config.spine_branches)) if spine else 0
        waiting = []

        def hang(path, but, share):
            nonlocal left
            for token, p in self.successors([*text, *path]):
                if share <= 0 or left <= 0 or p < config.least:
                    break
                if token == but:
                    continue
                paths.append((*path, token))
                share, left = share - 1, left - 1
                if len(path) + 1 < config.depth:
                    waiting.append(((*path, token), p))

        total = left
        hang((), chain[0] if chain else None, left - at_spine)
        for i in range(len(spine)):
            weight = 1 / (i + 1) / sum(1 / (j + 1) for j in range(len(spine)))
            share = min(at_spine, max(1, int(config.spine_branches * total * weight)))
            at_spine -= share
            hang(tuple(spine[: i + 1]), spine[i + 1] if i + 1 < len(spine) else None, share)
        while waiting and left > 0:
            path, p = waiting.pop(0)
            hang(path, None, min(max(1, config.top_k // len(path)), ceil(left * p)))
        self.spine = spine
        return paths

    def commit(self, tokens):
        if self.spine:
            right = 0
            while right < min(len(self.spine), len(tokens)) and self.spine[right] == tokens[right]:
                right += 1
            self.ema += self.config.smoothing * (right / len(self.spine) - self.ema)
            self.n_spines += 1


@pytest.mark.parametrize(
    ("config", "budget", "n_successors"),
    [
        (GooseConfig(), 64, 1),
        (GooseConfig(), 16, 2),
        (GooseConfig(ngrams=(3, 2, 1), spine=5, long_spine=4, nodes=20, most_nodes=30), 64, 3),
        (GooseConfig(ngrams=(3, 2, 1), spine=5, long_spine=4, nodes=20, most_nodes=30), 64, 1),
        (GooseConfig(long_spine=1000, top_k=3, depth=3, least=0.2, spine_branches=1.0), 40, 2),
    ],
)
def test_every_draft_of_goose_equals_the_literal_algorithm(config, budget, n_successors):
    literal = LiteralGoose(config)
    follow(Goose(config), literal, HashTarget(48, n_successors), PROMPT, 40, budget)
    assert literal.n_spines > 5


@given(
    st.sampled_from([Goose, Stand, TokenRecycling]),
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.lists(st.integers(1, 60)),
    st.integers(1, 64),
)
def test_a_prompt_in_chunks_gives_the_same_draft_within_the_budget(make, prompt, ends, budget):
    target, found = HashTarget(40), []
    for cuts in ((), sorted(ends)):
        method, request = make(), view(prompt)
        method.begin(request)
        observe_prompt(method, request, target, cuts)
        found.append(paths_of(method.propose(request, budget)))
    assert found[0] == found[1]
    assert len(found[0]) <= budget


@pytest.mark.parametrize("method", [Goose(GooseConfig(max_rows=5)), Stand(StandConfig(max_rows=5))])
def test_rows_are_bounded(method):
    request = view(PROMPT)
    method.begin(request)
    observe_prompt(method, request, HashTarget(48))
    assert len(method.states[0].rows) == 5
