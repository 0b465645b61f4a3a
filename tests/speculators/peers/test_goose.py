"""GOOSE against its Algorithm 1 written down once more, with scans instead of indexes."""

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError
from engine.protocol import Needs, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE, ROOT, TokenTree
from speculators.peers.goose import Goose, GooseConfig
from speculators.testing import HashTarget

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5, 9]


def view(prompt, request_id=0, scope=""):
    return RequestView.of(request_id, Request(prompt, SamplingParams(), scope=scope), 48)


class Literal:
    """The published algorithm, slowly."""

    def __init__(self, config):
        self.config = config
        self.rows = {}
        self.ema = 0.5

    def said(self, context, ids):
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
        """Paths of the tree's nodes, and the spine."""
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
        return paths, spine


def paths_of(tree):
    return [tuple(tree.tokens[i] for i in tree.path(node)) for node in range(len(tree))]


SETTINGS = [
    (GooseConfig(), 64),
    (GooseConfig(), 16),
    (GooseConfig(ngrams=(3, 2, 1), spine=5, long_spine=4, nodes=20, most_nodes=30), 64),
    (GooseConfig(long_spine=1000, top_k=3, depth=3, least=0.2, spine_branches=1.0), 40),
]


@pytest.mark.parametrize(("config", "budget"), SETTINGS)
@pytest.mark.parametrize("n_successors", [1, 2, 3])
def test_drafts_are_the_algorithms_step_by_step(config, budget, n_successors):
    target = HashTarget(48, n_successors)
    goose, literal, request = Goose(config), Literal(config), view(PROMPT)
    goose.begin(request)
    outcome = target.read_prompt(PROMPT)
    for end, ids in enumerate(outcome.prompt_top_ids.tolist(), 1):
        literal.said(PROMPT[:end], ids)
    n_spines = 0
    for _ in range(40):
        request.context.extend(outcome.tokens)
        goose.observe(request, outcome)
        text = request.context.view.tolist()
        wanted, spine = literal.draft(text, budget)
        branches = goose.propose(request, budget)
        assert [path for branch in branches for path in paths_of(TokenTree(branch.tokens, branch.parents))] == wanted
        assert len(wanted) <= budget
        tree = compose(branches, budget)
        outcome = target.score(text, tree)
        literal.said(text, outcome.top_ids[ROOT])
        for node, path in enumerate(paths_of(tree)):
            literal.said([*text, *path], outcome.top_ids[node])
        if spine:
            n_spines += 1
            right = 0
            while right < min(len(spine), len(outcome.tokens)) and spine[right] == outcome.tokens[right]:
                right += 1
            literal.ema += config.smoothing * (right / len(spine) - literal.ema)
    output = request.context.view[len(PROMPT) :].tolist()
    assert output == target.generate(PROMPT, len(output))
    assert n_spines > 5


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 64))
def test_no_budget_is_exceeded_and_no_text_breaks_it(prompt, budget):
    target, goose, request = HashTarget(40), Goose(), view(prompt)
    goose.begin(request)
    outcome = target.read_prompt(prompt)
    request.context.extend(outcome.tokens)
    goose.observe(request, outcome)
    assert sum(len(branch.tokens) for branch in goose.propose(request, budget)) <= budget
    goose.end(request)
    assert goose._states == {}


def test_prompts_in_chunks_leave_the_same_state():
    target = HashTarget(48)
    prompt = [*PROMPT, *target.generate(PROMPT, 20)]
    whole, found = target.read_prompt(prompt), []
    for cuts in ([len(prompt)], [1, 8, 9, 20, len(prompt)]):
        goose, request, start = Goose(), view(prompt), 0
        goose.begin(request)
        for end in cuts:
            tokens = whole.tokens if end == len(prompt) else []
            request.context.extend(tokens)
            chunk = slice(start, end)
            goose.observe(
                request,
                Outcome(
                    tokens,
                    EMPTY_TREE,
                    prompt_top_ids=whole.prompt_top_ids[chunk],
                    prompt_top_logprobs=whole.prompt_top_logprobs[chunk],
                    prompt_start=start,
                    n_read=end - start,
                ),
            )
            start = end
        found.append([*goose._states[0].rows.items()])
    assert found[0] == found[1]


def test_a_scope_shares_its_table_and_no_other():
    target, goose = HashTarget(48), Goose(GooseConfig(shared=True, use_prompt=False))
    request = view(PROMPT, 0, "a")
    goose.begin(request)
    request.context.extend([7])
    goose.observe(request, target.read_prompt(PROMPT))
    goose.end(request)
    for scope, knows in (("a", True), ("b", False)):
        later = view([9], 1, scope)
        goose.begin(later)
        assert (goose.propose(later, 8) != []) == knows
        goose.end(later)


def test_rows_are_bounded_and_needs_are_ids_with_probabilities():
    target, goose, request = HashTarget(48), Goose(GooseConfig(max_rows=5)), view(PROMPT)
    goose.begin(request)
    goose.observe(request, target.read_prompt(PROMPT))
    assert len(goose._states[0].rows) == 5
    assert goose.needs == Needs(node_top_k=10, prompt_top_k=10, top_logprobs=True)
    assert Goose(GooseConfig(top_k=4, use_prompt=False)).needs == Needs(node_top_k=4, top_logprobs=True)


@pytest.mark.parametrize(
    "bad", [{"nodes": 0}, {"top_k": 0}, {"least": 2.0}, {"ngrams": ()}, {"ngrams": (3, 4)}, {"ratios": (0.1, 0.2, 1.5)}]
)
def test_wrong_settings_are_named(bad):
    with pytest.raises(ConfigError, match=f"goose: {next(iter(bad))} must "):
        GooseConfig(**bad)
