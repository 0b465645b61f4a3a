"""GOOSE, STAND and AdaPLD against their algorithms written down once more, with scans instead of indexes."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import ceil
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Artefacts, Needs, Outcome
from engine.sampling.noise import gumbel
from engine.tree import EMPTY_TREE, ROOT
from speculators.peers.adapld import AdaPld, AdaPldConfig
from speculators.peers.goose import Goose, GooseConfig
from speculators.peers.stand import Stand, StandConfig, averaged
from speculators.successors.token_recycling import TokenRecycling, rank_tree
from speculators.testing import HashTarget
from tests.support.drafts import follow, observe_prompt, paths_of, tokens_of, view

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5, 9]


class LiteralGoose:
    """The published algorithm, slowly."""

    def __init__(self, config):
        self.config = config
        self.rows = {}
        self.ema, self.n_spines = 0.5, 0

    def learn(self, context, ids):
        ids = ids[: self.config.top_k]
        p = np.array([0.5 ** (i + 1) for i in range(len(ids))])
        row = list(zip(ids, (p / p.sum()).tolist(), strict=True))
        self.rows[tuple(context[-1:])] = row
        self.rows[tuple(context[-2:])] = row

    def successors(self, context):
        return self.rows.get(tuple(context[-2:])) or self.rows.get(tuple(context[-1:])) or []

    def match(self, text, tail):
        """Chain and agreement: scans the whole text for the latest earlier occurrence of every length."""
        starts = {}
        for n in self.config.ngrams:
            if len(tail) >= n:
                ends = [e for e in range(n, len(text)) if list(text[e - n : e]) == list(tail[-n:])]
                if ends:
                    starts[n] = ends[-1]
        if not starts:
            return [], 0.0
        start = starts[max(starts)]
        chain = list(text[start : start + self.config.spine])
        agree = sum(text[place] == chain[0] for place in starts.values()) / len(self.config.ngrams)
        return chain, agree * min(1.0, len(chain) / self.config.long_spine)

    def draft(self, text, budget):
        """Paths of the tree's nodes."""
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
def test_goose_drafts_as_its_algorithm_step_by_step(config, budget, n_successors):
    literal = LiteralGoose(config)
    follow(Goose(config), literal, HashTarget(48, n_successors), PROMPT, 40, budget)
    assert literal.n_spines > 5


@given(
    st.sampled_from([Goose, Stand, TokenRecycling]),
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.lists(st.integers(1, 60)),
    st.integers(1, 64),
)
def test_prompts_in_chunks_teach_the_same_and_budgets_are_kept(make, prompt, ends, budget):
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
    assert len(method._states[0].rows) == 5


@pytest.mark.parametrize(
    ("method", "needs"),
    [
        (Goose(), Needs(node_top_k=10, prompt_top_k=10, top_logprobs=True)),
        (Goose(GooseConfig(top_k=4, use_prompt=False)), Needs(node_top_k=4, top_logprobs=True)),
        (Stand(StandConfig(top_k=2)), Needs(node_top_k=2, prompt_top_k=2, top_logprobs=True)),
        (
            AdaPld(AdaPldConfig(layer=3, dims=16, top_k=4)),
            Needs(node_top_k=4, prompt_top_k=4, top_logprobs=True, hidden_layer=3, hidden_dims=16),
        ),
    ],
)
def test_needs_are_ids_with_probabilities_and_states(method, needs):
    assert method.needs == needs


@given(st.lists(st.lists(st.integers(1, 9), min_size=4, max_size=4), min_size=1, max_size=6))
def test_a_row_of_stand_is_the_mean_of_all_distributions(weights):
    said = [np.array(row) / sum(row) for row in weights]
    row = None
    for p in said:
        row = averaged(row, dict(enumerate(p.tolist())), 4)
    assert row[0] == len(said)
    assert [row[1][token] for token in range(4)] == pytest.approx(np.mean(said, axis=0).tolist())
    k, best = averaged((3, {1: 0.6, 2: 0.4}), {3: 0.9, 2: 0.1}, 2)
    assert k == 4
    assert best == pytest.approx({1: 0.45 / 0.775, 2: 0.325 / 0.775}), "the best ids share all probability"


class LiteralStand:
    """Means of distributions by context, kept as lists of all rows; greedy drafts by rank."""

    def __init__(self, config):
        self.config = config
        self.said = {}

    def learn(self, context, ids):
        p = np.array([0.5 ** (i + 1) for i in range(self.config.top_k)])
        for order in range(1, min(self.config.order, len(context)) + 1):
            known = self.said.setdefault(tuple(context[-order:]), [])
            known.append(dict(zip(ids, (p / p.sum()).tolist(), strict=False)))

    def row(self, context):
        for order in range(self.config.order, 0, -1):
            known = self.said.get(tuple(context[-order:])) if len(context) >= order else None
            if known:
                row = None
                for p in known:
                    row = averaged(row, p, self.config.top_k)
                return [token for token, _ in sorted(row[1].items(), key=lambda item: -item[1])]
        return []

    def draft(self, text, budget):
        paths = []
        for parent, rank in rank_tree(min(budget, self.config.nodes), self.config.depth, self.config.top_k):
            above = () if parent == ROOT else paths[parent]
            row = [] if above is None else self.row([*text, *above])
            paths.append(None if rank >= len(row) else (*above, row[rank]))
        return [path for path in paths if path is not None]


@pytest.mark.parametrize(("config", "budget"), [(StandConfig(), 64), (StandConfig(order=1, top_k=3, depth=4), 16)])
def test_stand_drafts_greedily_as_its_means_step_by_step(config, budget):
    assert follow(Stand(config), LiteralStand(config), HashTarget(48, n_successors=2), PROMPT[:8], 25, budget) > 30


def taught(config, p, **params):
    """A speculator with one row, after token 7."""
    stand, request = Stand(config), view([7], vocab_size=48, temperature=1.0, **params)
    stand.begin(request)
    ids = np.arange(len(p), dtype=np.int32)[None]
    stand.observe(
        request,
        Outcome([], EMPTY_TREE, prompt_top_ids=ids, prompt_top_logprobs=np.log(np.array([p], np.float32)), n_read=1),
    )
    return stand, request


def test_stand_draws_children_without_replacement():
    p = (0.6, 0.3, 0.1)
    stand, request = taught(StandConfig(depth=1), p, seed=5)
    n = 4000
    drawn = Counter(tuple(stand.propose(request, 3)[0].tokens) for _ in range(n))
    for order in permutations(range(3)):
        expected = p[order[0]] * p[order[1]] / (1 - p[order[0]])
        assert drawn[order] / n == pytest.approx(expected, abs=4 * (expected * (1 - expected) / n) ** 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_with_the_targets_noise_the_first_child_of_stand_is_its_draw(seed):
    """``argmax(log p + Gumbel)`` at the position to be drawn, where the row is the target's distribution."""
    p = np.array([0.4, 0.3, 0.2, 0.1], np.float32)
    stand, request = taught(StandConfig(depth=1, noise="target"), p, seed=seed)
    noise = gumbel([(seed, 0, 1)], 48)[0][:4].numpy()
    order = np.argsort(-(np.log(p) + noise)).tolist()
    assert stand.propose(request, 4)[0].tokens == order
    assert stand.propose(request, 4)[0].tokens == order  # a function of seed and position
    rejecting, request = taught(StandConfig(depth=1, noise="target"), p, seed=seed, verification="rejection")
    assert rejecting._states[0].key is None


DIMS = 6


class LiteralAdaPld:
    """Everything kept as it came: text, states, successors of every token."""

    def __init__(self, config):
        self.config, self.states, self.successors = config, [], {}
        self.rng = np.random.default_rng(1)

    def learn(self, context, ids):
        self.successors[context[-1]] = ids[: self.config.top_k]

    def forward(self, tokens):
        """States that depend on the token and on chance."""
        rows = np.array([[np.sin(token * (i + 1)) for i in range(DIMS)] for token in tokens], np.float32)
        rows += 0.3 * self.rng.standard_normal(rows.shape).astype(np.float32)
        self.states.extend(rows)
        return Artefacts(rows)

    def alike(self, positions):
        """The position whose state is most like the last one's, and how much."""
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
                start = self.alike(with_state)[0] + 2 if with_state else ends[-1]
                return text[start : start + config.draft_tokens]
        if t < 3:
            return []
        position, cosine = self.alike(range(t - 2))
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
                place = self.alike(known)[0] + 2 if known else places[-1]
                paths.append((token, text[place]))
        return paths


@pytest.mark.parametrize(("ngram_min", "n_successors"), [(1, 3), (2, 1), (2, 3), (4, 1)])
def test_adapld_drafts_as_whole_scans_step_by_step(ngram_min, n_successors):
    config = AdaPldConfig(layer=0, ngram_max=4, ngram_min=ngram_min, draft_tokens=5, branches=3, top_k=4, least=0.6)
    prompt = [Random(0).randrange(20) for _ in range(30)]
    follow(AdaPld(config), LiteralAdaPld(config), HashTarget(64, n_successors), prompt, 30, 64)


def test_a_restarted_adapld_without_states_looks_up_the_latest_match():
    adapld, request = AdaPld(AdaPldConfig(layer=0, branches=0)), view([1, 2, 3, 1, 2, 4, 1])
    adapld.begin(request)
    request.context.extend([2])
    adapld.observe(request, Outcome([2], EMPTY_TREE))
    assert [branch.tokens for branch in adapld.propose(request, 2)] == [[4, 1]]
    request.context.extend([9])
    adapld.observe(request, Outcome([9], EMPTY_TREE))
    assert adapld.propose(request, 8) == []  # nothing matches, and no state is known


def test_the_budget_cuts_alternatives_of_adapld_first():
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
