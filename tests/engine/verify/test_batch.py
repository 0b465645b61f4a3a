"""The batched walk equals one-token-at-a-time decoding and the reference rules, in any batch."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.events import NOT_FINITE
from engine.sampling import logprobs
from engine.sampling.history import History
from engine.sampling.logprobs import as_logprobs, fetch_logprobs
from engine.sampling.noise import KeyedRandom, gumbel
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.tree import EMPTY_TREE, ROOT, TokenTree
from engine.verify.batch import Walk, WalkItem, verify
from engine.verify.rules import Decision, decide_rejection
from tests.support.enumeration import walk
from tests.support.pretended_device import pretended_device

VOCAB = 7
PROMPT = (1, 4, 4)


def model(context: Sequence[int], seed: int) -> torch.Tensor:
    """A stand-in target: ``[VOCAB]`` fp32 logits, a function of the whole context."""
    state = zlib.crc32(np.array([seed, *context], dtype=np.int64).tobytes())
    return torch.from_numpy(np.random.default_rng(state).normal(0.0, 1.5, VOCAB).astype(np.float32))


@dataclass
class VerificationCase:
    """One sequence: committed output, drafted tree, sampling parameters."""

    tree: TokenTree
    params: SamplingParams
    seed: int
    output: tuple[int, ...] = ()
    max_new: int | None = None

    @property
    def context(self) -> tuple[int, ...]:
        return PROMPT + self.output

    def history(self, more: Sequence[int] = ()) -> History:
        return History(PROMPT, [*self.output, *more])

    def prefix(self, node: int) -> list[int]:
        return [self.tree.tokens[i] for i in self.tree.path(node)]

    def rows(self) -> torch.Tensor:
        nodes = range(ROOT, len(self.tree))
        return torch.stack([model([*self.context, *self.prefix(node)], self.seed) for node in nodes])

    def scores(self, tokens: Sequence[int]) -> torch.Tensor:
        """Processed scores after the context and ``tokens``, ``[VOCAB]``."""
        return process(model([*self.context, *tokens], self.seed)[None], [self.params], [self.history(tokens)])[0]

    def cut(self, accepted: list[int], tokens: list[int]) -> tuple[list[int], list[int]]:
        """Ends a reference walk at a stop id or at ``max_new`` tokens."""
        end = next((i + 1 for i, token in enumerate(tokens) if token in self.params.stop_ids), len(tokens))
        end = end if self.max_new is None else min(end, self.max_new)
        return accepted[:end], tokens[:end]


def run(cases: Sequence[VerificationCase], dtype: torch.dtype = torch.float32) -> list[Walk]:
    """All cases in one batch, with two unused rows before each."""
    parts, items, first = [], [], 0
    for case in cases:
        parts += [torch.full((2, VOCAB), float("nan")), case.rows()]
        items.append(WalkItem(case.tree, first + 2, case.params, case.history(), len(case.context), case.max_new))
        first += 2 + len(case.tree) + 1
    return verify(torch.cat(parts).to(dtype), items)


def autoregressive(case: VerificationCase, n: int) -> list[int]:
    """``n`` tokens one at a time, from the definition of coupled sampling; fewer if a stop id comes."""
    tokens: list[int] = []
    while len(tokens) < n and not (tokens and tokens[-1] in case.params.stop_ids):
        scores = case.scores(tokens)
        if not case.params.is_greedy:
            position = len(case.context) + len(tokens)
            scores = scores + gumbel([(case.params.seed, case.params.choice, position)], VOCAB)[0]
        tokens.append(int(scores.argmax()))
    return tokens


def reference_rejection(case: VerificationCase) -> tuple[list[int], list[int]]:
    def decide(node: int) -> Decision:
        prefix = case.prefix(node)
        p = torch.softmax(case.scores(prefix).double(), -1).numpy()
        key = (case.params.seed, case.params.choice, len(case.context) + len(prefix))
        return decide_rejection(p, case.tree, node, KeyedRandom(key))

    return case.cut(*walk(case.tree, decide))


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.5, 1.0, 1.7]),
        top_k=rng.choice([0, 0, 3]),
        top_p=rng.choice([1.0, 0.8]),
        min_p=rng.choice([0.0, 0.1]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.4]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.7]),
        logit_bias=rng.choice([{}, {}, {2: 1.0}]),
        min_tokens=rng.choice([0, 0, 4]),
        stop_ids=rng.choice([(), (0,), (0, 5)]),
        seed=rng.randrange(2**64),
        choice=rng.randrange(3),
        logprobs=rng.choice([None, None, 0, 2]),
        verification=rng.choice(["coupled", "coupled", "rejection"]),
    )


@st.composite
def cases(draw: st.DrawFn) -> VerificationCase:
    rng = random.Random(draw(st.integers(0, 2**32)))
    params = random_params(rng)
    seed, output = rng.randrange(10), tuple(rng.randrange(VOCAB) for _ in range(rng.randrange(4)))
    planted = autoregressive(
        VerificationCase(EMPTY_TREE, params, seed, output), rng.choice([0, 0, 2, 5])
    )  # to be accepted
    n = len(planted) + rng.choice([0, 1, 5, 20, 40])
    tokens = planted + [rng.randrange(VOCAB) for _ in range(n - len(planted))]
    parents = [i - 1 if i < len(planted) else rng.randrange(-1, min(i, 8)) for i in range(n)]
    probe = [False] * n
    for i in range(n):
        probe[i] = rng.random() < 0.1 or (parents[i] != ROOT and probe[parents[i]])
    q = None
    if rng.random() < 0.3:
        q = np.random.default_rng(rng.randrange(2**32)).dirichlet(np.ones(VOCAB), n).astype(np.float32)
        q[np.array([rng.random() < 0.3 for _ in range(n)], dtype=bool)] = 0.0
    tree = TokenTree(tokens, parents, probe=probe, q=q)
    return VerificationCase(tree, params, seed, output, rng.choice([None, None, 1, 2, 3]))


@given(st.lists(cases(), min_size=1, max_size=5), st.sampled_from([1, 5 * VOCAB, logprobs.CELLS]))
def test_any_batch_emits_the_tokens_of_decoding_one_by_one(batch: list[VerificationCase], cells: int) -> None:
    results = run(batch)
    assert results == [run([case])[0] for case in batch]
    for dtype in (torch.float32, torch.bfloat16):  # all rows at once, as on a GPU, whole or in pieces
        by_level = run(batch, dtype)
        with pretended_device(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(logprobs, "CELLS", cells)
            assert run(batch, dtype) == by_level
    for case, result in zip(batch, results, strict=True):
        tokens = result.tokens
        if case.params.verification == "rejection" and not case.params.is_greedy:
            assert (result.accepted, tokens) == reference_rejection(case)
        else:
            assert tokens == autoregressive(case, len(tokens))
        check_shape(case, result)


def check_shape(case: VerificationCase, result: Walk) -> None:
    """A walk is a path, ends for a reason and reports log-probabilities of the raw rows."""
    tree, accepted, tokens = case.tree, result.accepted, result.tokens
    assert accepted == (tree.path(accepted[-1]) if accepted else [])
    assert not any(tree.probe[node] for node in accepted)
    assert [tree.tokens[node] for node in accepted] == tokens[: len(accepted)]
    ended = tokens[-1] in case.params.stop_ids or len(tokens) == case.max_new
    assert len(tokens) == len(accepted) + 1 or (ended and len(tokens) == len(accepted))
    if len(tokens) > len(accepted) and case.params.verification == "coupled":
        below = tree.children[(accepted[-1] if accepted else ROOT) + 1]
        assert all(tree.tokens[child] != tokens[-1] for child in below), "a drafted token was not accepted"
    assert not any(token in case.params.stop_ids for token in tokens[:-1])
    if case.params.logprobs is None:
        assert result.logprobs is None
        return
    rows = torch.stack([model([*case.context, *tokens[:i]], case.seed) for i in range(len(tokens))])
    k = case.params.logprobs
    assert result.logprobs == as_logprobs(tokens, [k] * len(tokens), *fetch_logprobs(rows, tokens, k))


def test_a_drafted_stop_id_ends_the_walk_without_a_bonus_token() -> None:
    logits = torch.full((4, VOCAB), -5.0)
    for row, token in enumerate([3, 6, 2, 1]):
        logits[row, token] = 5.0
    tree = TokenTree([3, 6, 2], [ROOT, 0, 1])
    for params in (SamplingParams(stop_ids=(6,)), SamplingParams(stop_ids=(6,), temperature=0.1)):
        assert verify(logits, [WalkItem(tree, 0, params, None, 5)])[0] == Walk([0, 1], [3, 6])
    assert verify(logits, [WalkItem(tree, 0, SamplingParams(), None, 5)])[0] == Walk([0, 1, 2], [3, 6, 2, 1])
    assert verify(logits, [WalkItem(tree, 0, SamplingParams(), None, 5, max_new=0)])[0] == Walk()
    assert verify(logits, []) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ties_go_to_the_lowest_id_and_logits_are_unchanged(dtype: torch.dtype) -> None:
    logits = torch.zeros((3, VOCAB), dtype=dtype)
    logits[:, [2, 5]] = 1.0
    gathered = SamplingParams(min_tokens=9, stop_ids=(0,))  # its rows are gathered and processed
    items = [WalkItem(EMPTY_TREE, i, p, History(()), 1) for i, p in enumerate([SamplingParams(), gathered, gathered])]
    assert [result.tokens for result in verify(logits, items)] == [[2], [2], [2]]
    (single,) = verify(logits[1:2], [WalkItem(EMPTY_TREE, 0, gathered, History(()), 1)])
    assert single.tokens == [2]
    case = VerificationCase(
        TokenTree([0, 1], [ROOT, ROOT]), SamplingParams(temperature=0.7, logit_bias={1: 9.0}), seed=1
    )
    rows = case.rows().to(dtype)
    before = rows.clone()
    (result,) = verify(rows, [WalkItem(case.tree, 0, case.params, None, len(PROMPT))])
    assert torch.equal(rows, before)
    assert result.tokens == verify(rows.float(), [WalkItem(case.tree, 0, case.params, None, 3)])[0].tokens


@pytest.mark.parametrize("place", [nullcontext, pretended_device])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"min_tokens": 1, "stop_ids": (0,)},
        {"logprobs": 2},
        {"temperature": 0.9},
        {"temperature": 0.9, "top_p": 0.5, "logprobs": 0},
        {"temperature": 0.9, "verification": "rejection"},
    ],
)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_logits_that_are_not_finite_end_their_own_walk_with_an_error(
    place: Callable[[], AbstractContextManager[None]], params: dict[str, Any], value: float, dtype: torch.dtype
) -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(5)).to(dtype)
    logits[0] += 6e4  # finite in float16, unlike the sum of the row
    trees = [EMPTY_TREE, EMPTY_TREE, TokenTree([3], [ROOT])]  # the last walk rejects its node and never sees row 3

    def walks() -> list[Walk]:
        sampling = SamplingParams(**params)
        items = [WalkItem(tree, row, sampling, History(PROMPT), 3) for row, tree in enumerate(trees)]
        return verify(logits, items)

    logits[2, 3] = -9.0
    with place():
        whole = walks()
        assert [walk.error for walk in whole] == ["", "", ""]
        logits[1, 4] = logits[3, 4] = value
        found = walks()
    assert [walk.error for walk in found] == ["", NOT_FINITE, ""]
    assert (found[0].tokens, found[2].tokens) == (whole[0].tokens, whole[2].tokens)


@pytest.mark.parametrize("params", [{}, {"temperature": 0.9}])
def test_a_device_notices_logits_that_are_not_finite_below_an_accepted_node(params: dict[str, Any]) -> None:
    logits = torch.full((2, VOCAB), -50.0)
    logits[0, 3], logits[1, 2] = 50.0, torch.nan
    with pretended_device():
        (walk,) = verify(logits, [WalkItem(TokenTree([3], [ROOT]), 0, SamplingParams(**params), None, 3)])
    assert (walk.accepted, walk.error) == ([0], NOT_FINITE)
