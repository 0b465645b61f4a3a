"""The draft model's cache holds the accepted text of live requests, within its memory, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Branch, Outcome, RequestView
from engine.tree import EMPTY_TREE
from speculators.draft_model.drafter import Rows
from speculators.mixing.fault_isolation import FaultIsolated
from tests.support.draft_models import (
    GREEDY,
    SAMPLED,
    SETTINGS,
    VOCAB,
    begun,
    check_integrity,
    draft_model,
    text,
    view,
    written,
)
from tests.support.drafts import paths_of, tokens_of


@settings(max_examples=10)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=8), st.sampled_from([0, 10]))
def test_whatever_is_accepted_the_next_draft_is_that_of_a_fresh_cache(
    steps: list[tuple[int, bool]], tree_nodes: int
) -> None:
    model = draft_model(tree_nodes=tree_nodes, tree_beam=3)
    request = begun(model, view(text(21), 0, SAMPLED))
    for n_accepted, follows_draft in steps:
        draft = model.propose(request, 64)
        chain = _first_path(draft)
        committed = chain[:n_accepted] if follows_draft else []
        committed = [*committed, (len(request.context) * 7 + n_accepted) % VOCAB]
        request.context.extend(committed)
        model.observe(request, Outcome(committed, compose(draft, 64)))
        fresh = draft_model(tree_nodes=tree_nodes, tree_beam=3)
        now = request.context.view.tolist()
        alone = begun(fresh, view(now[: request.n_prompt], 0, SAMPLED, emitted=now[request.n_prompt :]))
        assert paths_of(model.propose(request, 64)) == paths_of(fresh.propose(alone, 64))
    model.end(request)
    check_integrity(model, 0)


def _first_path(branches: Sequence[Branch]) -> list[int]:
    """The path of first children."""
    path: tuple[int, ...] = ()
    for one in paths_of(branches):
        if one[:-1] == path:
            path = one
    return list(path)


@pytest.mark.parametrize("tree_nodes", [0, 12])
def test_requests_drafted_together_get_the_drafts_they_get_alone(tree_nodes: int) -> None:
    together = draft_model(tree_nodes=tree_nodes)
    names = list(SETTINGS)
    requests = [begun(together, view(text(15 + 11 * i, i), i, SETTINGS[name])) for i, name in enumerate(names)]
    budgets = [64, 3, 1, 64, 2, 64]
    drafts = together.propose_batch(requests, budgets)
    for i, draft in enumerate(drafts):
        alone = draft_model(tree_nodes=tree_nodes)
        request = begun(alone, view(text(15 + 11 * i, i), i, SETTINGS[names[i]]))
        assert paths_of(draft) == paths_of(alone.propose(request, budgets[i]))


def test_a_long_text_is_read_once_in_chunks_without_delaying_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = draft_model(prefill_chunk=50), []
    forward = model.drafter.forward

    def watched(parts: Sequence[Rows]) -> torch.Tensor:
        rows.append(sum(len(part.tokens) + (len(part.tree) if part.tree is not None else 0) for part in parts))
        return forward(parts)

    monkeypatch.setattr(model.drafter, "forward", watched)
    requests = [begun(model, view(text(n, i), i)) for i, n in enumerate((20, 220, 60))]
    drafted: list[list[int]] = []
    for _ in range(8):
        rows.clear()
        drafted.append([len(tokens_of(draft)) for draft in model.propose_batch(requests, [64] * 3)])
        assert max(rows) <= 50 + 3 * 6
    assert drafted[0] == [5, 0, 0]
    assert all(counts[0] == 5 for counts in drafted), "a request that is up to date drafts in every step"
    assert drafted[-1] == [5, 5, 5]
    assert sum(rows) <= 3 * 6, "a warm cache scores new tokens only"
    assert tokens_of(model.propose(requests[1], 64)) == written(text(220, 1), GREEDY, 5)


def test_a_request_without_memory_gets_no_drafts_until_blocks_are_free() -> None:
    model = draft_model(n_blocks=10, block_size=8)
    first, second = begun(model, view(text(40), 0)), begun(model, view(text(40, 1), 1))
    drafts = model.propose_batch([first, second], [64, 64])
    assert [len(tokens_of(draft)) for draft in drafts] == [5, 0]
    check_integrity(model, 2)
    assert model.drafter.blocks.owners == {0}
    model.end(first)
    assert tokens_of(model.propose(second, 64)) == written(text(40, 1), GREEDY, 5)
    model.end(second)
    check_integrity(model, 0)


def test_a_text_longer_than_the_drafters_limit_frees_its_blocks() -> None:
    model = draft_model(longest=60)
    request = begun(model, view(text(54)))
    assert len(tokens_of(model.propose(request, 64))) == 5
    request.context.extend([3, 4])
    assert model.propose(request, 64) == []
    assert model.drafter.blocks.n_free == model.drafter.blocks.n_blocks
    check_integrity(model, 1)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["begin", "begin", "step", "step", "step", "read", "end", "again"]), st.integers(0, 5)),
    min_size=8,
    max_size=25,
)


@given(ACTIONS, st.integers(6, 40), st.sampled_from([0, 7]))
def test_no_block_is_ever_lost(actions: list[tuple[str, int]], n_blocks: int, tree_nodes: int) -> None:
    """Random lives of six requests on a cache that is too small for them; every draft must be a fresh one's."""
    model = draft_model(n_blocks=n_blocks, block_size=4, tree_nodes=tree_nodes, tree_beam=2, prefill_chunk=16)
    live: dict[int, RequestView] = {}
    for action, number in actions:
        request = live.get(number)
        if action == "begin" and request is None:
            live[number] = begun(model, view(text(8 + 9 * number, number), number, SAMPLED))
        elif action == "step":
            for one, draft in zip(live.values(), model.propose_batch([*live.values()], [64] * len(live)), strict=True):
                path = _first_path(draft)
                if path and not tree_nodes:
                    assert path == written(one.context.view.tolist(), SAMPLED, len(path), one.n_prompt)
                committed = [*path[: (number + one.request_id) % 5], number]
                one.context.extend(committed)
                model.observe(one, Outcome(committed, compose(draft, 64)))
        elif action == "read" and request is not None:
            model.observe(request, Outcome((), EMPTY_TREE))
        elif action == "end" and request is not None:
            model.end(live.pop(number))
        elif action == "again" and request is None:
            model.end(view(text(4), number))  # cancelled before it began
        check_integrity(model, len(live))
    for request in live.values():
        model.end(request)
    check_integrity(model, 0)


def test_a_failed_forward_corrupts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = draft_model()
    isolated = FaultIsolated(model)
    requests = [view(text(30, i), i) for i in range(2)]
    for request in requests:
        isolated.begin(request)
    forward, calls = model.drafter.forward, []

    def failing(parts: Sequence[Rows]) -> torch.Tensor:
        calls.append(parts)
        if len(calls) == 3:
            raise RuntimeError("no kernel")
        return forward(parts)

    monkeypatch.setattr(model.drafter, "forward", failing)
    drafts = isolated.propose_batch(requests, [64, 64])  # fails for both, then succeeds one by one
    for request, draft in zip(requests, drafts, strict=True):
        assert tokens_of(draft) == written(text(30, request.request_id), GREEDY, 5)
        isolated.end(request)
    check_integrity(model, 0)
