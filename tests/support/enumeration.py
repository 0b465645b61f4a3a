"""Proof by enumeration on a target of three tokens.

Each random decision, the drafter's draws included, is replayed over all its outcomes with their exact weights; the
distribution of the first ``LENGTH`` tokens is compared with the autoregressive one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from engine.protocol import Branch
from engine.sampling.noise import Randomness
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.tree import ROOT, TokenTree
from engine.verify.rules import Decision, Row, decide_rejection

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


class ScriptedRun:
    """One run of a random program: decides by a script, then takes the first outcome of each decision."""

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
        run = ScriptedRun(script)
        yield program(run), run.weight
        script = None
        for step in reversed(range(len(run.taken))):
            if run.taken[step] + 1 < run.n_options[step]:
                script = [*run.taken[:step], run.taken[step] + 1]
                break


@lru_cache(maxsize=100_000)
def _logits(context: Context, seed: int, spread: float) -> tuple[float, ...]:
    return tuple(np.random.default_rng([seed, *(t + 1 for t in context)]).normal(0.0, spread, VOCAB).tolist())


class ThreeTokenTarget:
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


def walk(tree: TokenTree, decide: Callable[[int], Decision]) -> tuple[list[int], list[int]]:
    """Accepted nodes, and tokens with the bonus token, of decisions that begin at the root."""
    accepted: list[int] = []
    tokens: list[int] = []
    child: int | None = ROOT
    while child is not None:
        child, token = decide(child)
        tokens.append(token)
        if child is not None:
            accepted.append(child)
    return accepted, tokens


def worst_error(target: ThreeTokenTarget, draft: Drafter, rule: Rule = decide_rejection) -> float:
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
