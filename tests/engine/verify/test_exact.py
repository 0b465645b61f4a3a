"""Proof by enumeration: every rule emits exactly the target's autoregressive distribution.

The real rules run on a vocabulary of three tokens. Each random decision, the drafter's draws included, is replayed
over all its outcomes with their exact weights; the distribution of the first ``LENGTH`` tokens must then equal the
autoregressive one. Rules that are known to be wrong must fail the same check.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from transformers import LlamaConfig, LlamaForCausalLM

from engine.composer import compose
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.protocol import Branch, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.target.info import TargetInfo
from engine.tree import EMPTY_TREE, ROOT, TokenTree
from engine.verify.rules import Decision, Randomness, Row, decide_rejection, match
from speculators.draft_model.drafter import Drafter as DraftingModel
from speculators.draft_model.speculator import DraftModel, DraftModelConfig
from speculators.mixing.combined import Combined
from speculators.successors.speculator import SuccessorConfig, Successors
from tests.support.reference_walks import walk, walk_greedy

VOCAB, LENGTH = 3, 3
EXACT = 1e-9
Context = tuple[int, ...]
Drafter = Callable[[Randomness], TokenTree]
Rule = Callable[[Row, TokenTree, int, Randomness], Decision]

SETTINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.4),
    SamplingParams(temperature=1.5, top_k=2),
    SamplingParams(temperature=1.0, top_p=0.7),
    SamplingParams(temperature=0.8, top_k=1),
    SamplingParams(temperature=1.0, logit_bias={1: 2.0}, min_p=0.3),
]


class Replay:
    """One run of a random program: follows a script of decisions, then takes the first outcome of each."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.weight = 1.0
        self.taken: list[int] = []
        self.n_options: list[int] = []

    def _decide(self, outcomes: Sequence[tuple[Any, float]]) -> Any:
        possible = [outcome for outcome in outcomes if outcome[1] > 0.0]
        step = len(self.taken)
        choice = self.script[step] if step < len(self.script) else 0
        self.taken.append(choice)
        self.n_options.append(len(possible))
        self.weight *= possible[choice][1]
        return possible[choice][0]

    def accept(self, probability: float) -> bool:
        assert 0.0 <= probability <= 1.0
        return bool(self._decide([(True, probability), (False, 1.0 - probability)]))

    def draw(self, weights: Row) -> int:
        assert weights.sum() > 0.0
        return int(self._decide(list(enumerate((weights / weights.sum()).tolist()))))


def every_outcome(program: Callable[[Randomness], Any]) -> Iterator[tuple[Any, float]]:
    """All results of a random program with their probabilities, depth first."""
    script: list[int] | None = []
    while script is not None:
        run = Replay(script)
        yield program(run), run.weight
        script = None
        for step in reversed(range(len(run.taken))):
            if run.taken[step] + 1 < run.n_options[step]:
                script = [*run.taken[:step], run.taken[step] + 1]
                break


@lru_cache(maxsize=100_000)
def _logits(context: Context, seed: int, spread: float) -> tuple[float, ...]:
    return tuple(np.random.default_rng([seed, *(t + 1 for t in context)]).normal(0.0, spread, VOCAB).tolist())


class Target:
    """A target of three tokens: random logits per context, through the real processors."""

    def __init__(self, params: SamplingParams, seed: int = 0) -> None:
        self.params, self.seed = params, seed
        self._rows: dict[Context, Row] = {}

    def p(self, context: Context) -> Row:
        if context not in self._rows:
            scores = process(torch.tensor([_logits(context, self.seed, 1.5)]), [self.params], [None])
            self._rows[context] = torch.softmax(scores[0].double(), -1).numpy()
        return self._rows[context]

    def table(self, tree: TokenTree) -> Row:
        return np.stack([self.p(())] + [self.p(tuple(tree.tokens[n] for n in tree.path(i))) for i in range(len(tree))])

    def joint(self, prefix: Context = ()) -> dict[Context, float]:
        """Distribution of the first LENGTH tokens after ``prefix``, drawn one by one."""
        if len(prefix) >= LENGTH:
            return {prefix[:LENGTH]: 1.0}
        table: dict[Context, float] = defaultdict(float)
        for token, weight in enumerate(self.p(prefix)):
            for sequence, inner in self.joint((*prefix, token)).items():
                table[sequence] += weight * inner
        return table


def q_row(context: Context, seed: int = 99) -> Any:
    """The drafter's distribution, ``[VOCAB]`` fp32."""
    weights = np.exp(_logits(context, seed, 1.0))
    return (weights / weights.sum()).astype(np.float32)


def sampled_chain(random: Randomness, depth: int, source: str = "drafter", seed: int = 99) -> Branch:
    """A chain drawn token by token from the drafter."""
    tokens: list[int] = []
    rows = []
    for _ in range(depth):
        rows.append(q_row(tuple(tokens), seed))
        tokens.append(random.draw(rows[-1].astype(np.float64)))
    return Branch(tokens, source, q=np.stack(rows))


def sampled_tree(random: Randomness, width: int, replace: bool) -> Branch:
    """``width`` draws at the root, with or without replacement, and one draw below each."""
    tokens: list[int] = []
    parents: list[int] = []
    rows = []
    row = q_row(())
    for _ in range(width):
        tokens.append(random.draw(row.astype(np.float64)))
        parents.append(ROOT)
        rows.append(row)
        if not replace:
            row = row.copy()
            row[tokens[-1]] = 0.0
            row = row / row.sum()
    for parent in range(width):
        rows.append(q_row((tokens[parent],)))
        tokens.append(random.draw(rows[-1].astype(np.float64)))
        parents.append(parent)
    return Branch(tokens, "drafter", parents, q=np.stack(rows))


def worst_error(target: Target, draft: Drafter, rule: Rule = decide_rejection) -> float:
    """Largest deviation of the joint distribution from the autoregressive one."""

    def step(random: Randomness) -> Context:
        tree = draft(random)
        p = target.table(tree)
        accepted, tokens = walk(tree, lambda node: rule(p[node + 1], tree, node, random))
        assert [tree.tokens[node] for node in accepted] == tokens[: len(accepted)]
        assert accepted == (tree.path(accepted[-1]) if accepted else [])
        for node, token in zip([ROOT, *accepted], tokens, strict=True):
            assert p[node + 1][token] > 0.0, "a token of probability 0 was emitted"
        return tuple(tokens)

    found: dict[Context, float] = defaultdict(float)
    total = 0.0
    for tokens, weight in every_outcome(step):
        total += weight
        for sequence, inner in target.joint(tokens).items():
            found[sequence] += weight * inner
    assert total == pytest.approx(1.0, abs=EXACT)
    return max(abs(found[sequence] - weight) for sequence, weight in target.joint().items())


def fixed(*branches: Branch, budget: int = 64) -> Drafter:
    return lambda random: compose(branches, budget)


def two_chains(random: Randomness) -> TokenTree:
    return compose([sampled_chain(random, 2), sampled_chain(random, 2)], 64)


def guess_then_chain(random: Randomness) -> TokenTree:
    return compose([Branch([0, 1], "pld"), sampled_chain(random, 2)], 64)


def chain_then_guess(random: Randomness) -> TokenTree:
    return compose([sampled_chain(random, 2), Branch([0, 1], "pld"), Branch([2], "pld")], 64)


def two_drafters(random: Randomness) -> TokenTree:
    return compose([sampled_chain(random, 2), sampled_chain(random, 2, "other", seed=7)], 64)


DRAFTERS: dict[str, Drafter] = {
    "nothing": fixed(),
    "one guess": fixed(Branch([1, 2], "pld")),
    "guesses that share a prefix": fixed(Branch([0, 1], "pld"), Branch([0, 2], "pld"), Branch([2], "pld")),
    "every token": fixed(*(Branch([token, 1], "pld") for token in range(VOCAB))),
    "one-hot duplicates": lambda random: TokenTree([1, 1, 0, 2, 2], [ROOT, ROOT, 0, 1, 1]),
    "guesses cut by the budget": fixed(Branch([0, 1, 2], "pld"), Branch([1, 1], "pld"), budget=4),
    "guesses over probes": fixed(Branch([0, 1], "pool", probe=True), Branch([0], "pld"), Branch([1], "pld")),
    "one sampled chain": lambda random: compose([sampled_chain(random, 3)], 64),
    "two sampled chains": two_chains,
    "a sampled tree": lambda random: compose([sampled_tree(random, 2, replace=True)], 64),
    "a tree sampled without replacement": lambda random: compose([sampled_tree(random, 2, replace=False)], 64),
    "a sampled tree cut by the budget": lambda random: compose([sampled_tree(random, 2, replace=True)], 3),
    "a guess, then draws": guess_then_chain,
    "draws, then a guess": chain_then_guess,
    "draws of two drafters": two_drafters,
}


@pytest.mark.parametrize("params", SETTINGS, ids=["T1", "T0.4", "top-k", "top-p", "top-1", "min-p and bias"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_tree_yields_the_autoregressive_distribution(name: str, params: SamplingParams) -> None:
    assert worst_error(Target(params), DRAFTERS[name]) < EXACT


@lru_cache
def small_model() -> DraftingModel:
    """A drafter with weights over the same three tokens."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        initializer_range=0.7,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).float()
    spec = read_spec(model.config)
    return DraftingModel(ModelShard(model, spec, split_layers(1, 1)[0], 64), TargetInfo(spec, 16, 4, 32))


def model_draft(random: Randomness, params: SamplingParams, *others: Branch) -> TokenTree:
    """What ``draft-model`` drafts with its draws from ``random``, before or after other guesses."""
    speculator = DraftModel(DraftModelConfig(draft_tokens=2), small_model(), lambda key: random)
    request = RequestView.of(0, Request([1, 0, 2, 1], structs.replace(params, verification="rejection")), VOCAB)
    speculator.begin(request)
    branches = speculator.propose(request, 8)
    speculator.end(request)
    assert branches[0].q is not None
    return compose([*others, *branches], 8)


@pytest.mark.parametrize("others", [(), (Branch([1, 2], "pld"),)], ids=["alone", "behind a guess"])
@pytest.mark.parametrize("params", SETTINGS, ids=["T1", "T0.4", "top-k", "top-p", "top-1", "min-p and bias"])
def test_drafts_of_a_model_yield_the_autoregressive_distribution(
    params: SamplingParams, others: tuple[Branch, ...]
) -> None:
    assert worst_error(Target(params), lambda random: model_draft(random, params, *others)) < EXACT


def combined_draft(random: Randomness, params: SamplingParams, draws_first: bool, budget: int) -> TokenTree:
    """What a combination of the mixed model and ``draft-model`` drafts, behind a text both know something about."""
    model = DraftModel(DraftModelConfig(draft_tokens=2), small_model(), lambda key: random)
    mixed = Successors(SuccessorConfig(), ("suffix", "token-recycling"))
    combined = Combined([model, mixed] if draws_first else [mixed, model])
    params = structs.replace(params, verification="rejection")
    request = RequestView.of(0, Request([1, 0, 2, 1, 0, 1], params), VOCAB)
    combined.begin(request)
    branches = combined.propose(request, budget)
    combined.end(request)
    assert any(branch.q is not None for branch in branches)
    assert any(branch.source == mixed.name for branch in branches)
    return compose(branches, budget)


@pytest.mark.parametrize("budget", [3, 8])
@pytest.mark.parametrize("draws_first", [True, False])
@pytest.mark.parametrize("params", SETTINGS[::2], ids=["T1", "top-k", "top-1"])
def test_combinations_yield_the_autoregressive_distribution(
    params: SamplingParams, draws_first: bool, budget: int
) -> None:
    assert worst_error(Target(params), lambda random: combined_draft(random, params, draws_first, budget)) < EXACT


@pytest.mark.parametrize("params", SETTINGS, ids=["T1", "T0.4", "top-k", "top-p", "top-1", "min-p and bias"])
def test_drafts_by_rule_yield_the_autoregressive_distribution(params: SamplingParams) -> None:
    """The mixed model drafts without luck, and for rejection without knowing the noise."""
    speculator = Successors(SuccessorConfig(), ("suffix", "token-recycling"))
    context = [1, 0, 2, 1, 0, 1]
    request = RequestView.of(0, Request(context, structs.replace(params, verification="rejection")), VOCAB)
    speculator.begin(request)
    target = Target(params)
    p = np.stack([target.p(())] * len(context))
    ids = np.argsort(-p).astype(np.int32)
    logprobs = np.log(np.maximum(np.take_along_axis(p, ids, 1), 1e-9)).astype(np.float32)
    speculator.observe(request, Outcome([], EMPTY_TREE, prompt_top_ids=ids, prompt_top_logprobs=logprobs))
    tree = compose(speculator.propose(request, 8), 8)
    assert len(tree) == 8
    assert worst_error(target, lambda random: tree) < EXACT


def test_a_model_accepts_more_by_its_distribution_than_by_its_tokens() -> None:
    """``min(1, p / q)`` is what ``q`` is handed over for: with it, less is rejected."""
    target, params = Target(SETTINGS[0]), SETTINGS[0]

    def accepted(keeps_q: bool) -> float:
        def step(random: Randomness) -> int:
            tree = model_draft(random, params)
            if not keeps_q:
                tree = TokenTree(tree.tokens, tree.parents)
            p = target.table(tree)
            return len(walk(tree, lambda node: decide_rejection(p[node + 1], tree, node, random))[0])

        return sum(n * weight for n, weight in every_outcome(step))

    assert accepted(keeps_q=True) > accepted(keeps_q=False) + 0.05


@pytest.mark.parametrize(
    "name", [n for n, d in DRAFTERS.items() if n not in ("two sampled chains", "draws, then a guess")]
)
def test_greedy_walks_follow_the_argmax(name: str) -> None:
    target = Target(SamplingParams())
    for tree, _ in every_outcome(DRAFTERS[name]):
        _, tokens = walk_greedy(tree, target.table(tree))
        for i, token in enumerate(tokens):
            assert token == target.p(tuple(tokens[:i])).argmax()


# The composer decides where q survives; that decision must not depend on what was drawn.

_TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=2)
_PIECES = st.one_of(
    _TOKENS.map(lambda tokens: ("guess", tokens)),
    _TOKENS.map(lambda tokens: ("probe", tokens)),
    st.integers(1, 2).map(lambda depth: ("drafter", depth)),
    st.integers(1, 2).map(lambda depth: ("other", depth)),
)


def composed(pieces: Sequence[tuple[str, Any]], budget: int, random: Randomness) -> TokenTree:
    branches = []
    for kind, what in pieces:
        if kind in ("guess", "probe"):
            branches.append(Branch(what, kind, probe=kind == "probe"))
        else:
            branches.append(sampled_chain(random, what, kind, seed=99 if kind == "drafter" else 7))
    return compose(branches, budget)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(_PIECES, min_size=1, max_size=4), st.integers(1, 6))
def test_any_merged_and_pruned_tree_is_exact(pieces: list[tuple[str, Any]], budget: int) -> None:
    drawn = sum(what for kind, what in pieces if kind in ("drafter", "other"))
    if drawn <= 5:
        draft = partial(composed, pieces, budget)
        assert worst_error(Target(SETTINGS[0]), draft) < EXACT


@pytest.mark.parametrize(
    ("pieces", "budget"),
    [
        ([("probe", [0]), ("drafter", 1)], 6),  # the draw lands on the probe, or not
        ([("drafter", 1), ("probe", [0])], 6),
        ([("probe", [0]), ("drafter", 1)], 1),  # no room, except on the probe
        ([("drafter", 1), ("guess", [0])], 1),  # the guess fits only if it was drawn
        ([("probe", [0]), ("drafter", 1), ("guess", [1])], 2),  # room for the guess only if the draw hit the probe
        ([("drafter", 1), ("other", 1)], 1),
        ([("drafter", 1), ("drafter", 1), ("drafter", 1)], 2),
    ],
)
def test_value_dependent_traps_of_composition(pieces: list[tuple[str, Any]], budget: int) -> None:
    assert worst_error(Target(SETTINGS[0]), partial(composed, pieces, budget)) < EXACT


# Rules and trees that are known to be wrong: tests of the test.


def discard_and_redraw(p: Row, tree: TokenTree, node: int, random: Randomness) -> Decision:
    """REST: draw, accept on a match; otherwise throw the draw away and draw again."""
    token = random.draw(p)
    child = match(tree, node, token)
    return (child, token) if child is not None else (None, random.draw(p))


def bonus_from_p(p: Row, tree: TokenTree, node: int, random: Randomness) -> Decision:
    """Forgets the residual."""
    child, token = decide_rejection(p, tree, node, random)
    return (child, token) if child is not None else (None, random.draw(p))


def ignores_q(p: Row, tree: TokenTree, node: int, random: Randomness) -> Decision:
    """Accepts with p/q, but leaves the one-hot residual."""
    left = p.copy()
    for child in tree.children[node + 1]:
        token = tree.tokens[child]
        assert tree.q is not None
        if random.accept(min(1.0, float(left[token] / tree.q[child, token]))):
            return child, token
        left[token] = 0.0
        left /= left.sum()
    return None, random.draw(left)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (discard_and_redraw, "one guess"),
        (discard_and_redraw, "one sampled chain"),
        (bonus_from_p, "one guess"),
        (bonus_from_p, "one sampled chain"),
        (ignores_q, "one sampled chain"),
    ],
)
def test_wrong_rules_are_caught(rule: Rule, name: str) -> None:
    assert worst_error(Target(SETTINGS[0]), DRAFTERS[name], rule) > 1e-3


def test_q_for_a_chosen_token_is_caught() -> None:
    """A token picked by rank was not drawn from q; a tree that claims so is not exact."""

    def by_rank(random: Randomness) -> TokenTree:
        row = q_row(())
        return TokenTree([int(row.argmax())], [ROOT], q=row[None])

    assert worst_error(Target(SETTINGS[0]), by_rank) > 1e-3


# Numerical corners: no crash, nothing impossible.


class Always:
    """Rejects whatever can be rejected, draws the last possible token."""

    def accept(self, probability: float) -> bool:
        return probability >= 1.0

    def draw(self, weights: Row) -> int:
        assert np.isfinite(weights).all()
        assert weights.sum() > 0.0
        return int(np.flatnonzero(weights)[-1])


@pytest.mark.parametrize(
    "p", [[1.0, 0.0, 0.0], [1e-300, 1.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3], [7.0, 0, 1.0]]
)
@pytest.mark.parametrize("q", [None, [1.0, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0, 1.0], [1e-30, 1.0, 0]])
def test_corners_neither_crash_nor_emit_the_impossible(p: list[float], q: list[float] | None) -> None:
    row = np.array(p)
    for tokens in itertools.product(range(VOCAB), repeat=3):
        rows = None if q is None else np.tile(np.array(q, dtype=np.float32), (3, 1))
        tree = TokenTree(tokens, [ROOT] * 3, q=rows)
        child, token = decide_rejection(row, tree, ROOT, Always())
        assert row[token] > 0.0
        assert child is None or tree.tokens[child] == token


def test_equal_distributions_that_differ_by_rounding_still_yield_a_token() -> None:
    p = np.array([0.1, 0.2, 0.7])
    tree = TokenTree([2], [ROOT], q=p[None].astype(np.float32))

    class Never(Always):
        def accept(self, probability: float) -> bool:
            return False

    assert decide_rejection(p, tree, ROOT, Never())[0] is None
    assert p.tolist() == [0.1, 0.2, 0.7], "the caller's row changed"
