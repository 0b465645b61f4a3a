"""Many requests in one pool: plain texts, no state left, scopes apart, failures isolated, prompts in pieces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import speculators.ngrams.lookahead as lookahead
import speculators.spectra.core as core
import speculators.successors.speculator as successors
from engine.composer import compose
from engine.errors import UnknownMethodError
from engine.protocol import Branch, Needs, Outcome, Speculator
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.auto.speculator import Auto
from speculators.method import SpeculatorOptions
from speculators.mixing.combined import Combined
from speculators.ngrams.anpd import Anpd
from speculators.ngrams.pld import PromptLookup
from speculators.ngrams.suffix import SuffixConfig, SuffixDecoding
from speculators.peers.goose import Goose, GooseConfig
from speculators.peers.stand import Stand, StandConfig
from speculators.pieces import PIECE
from speculators.pool import SpeculatorPool
from speculators.registry import create, warmed
from speculators.spectra.retrieval import SpectraRetrieval
from speculators.spectra.speculator import Spectra
from speculators.successors.config import SuccessorConfig
from speculators.successors.models import SuccessorModels
from speculators.successors.speculator import Successors
from speculators.successors.token_recycling import TokenRecycling, TokenRecyclingConfig
from speculators.tenant_state import MOST, TenantState
from speculators.testing import HashTarget
from tests.speculators.drafts import Scripted, first_draft, observe_prompt, tokens_of, view
from tests.support.methods import STANDALONE

COMBINED = [*STANDALONE, "pld+spectra-core", "suffix+token-recycling", "token-recycling+suffix+spectra-core+lookahead"]
FIRST = Outcome([5], EMPTY_TREE)


class ScriptedBatch(Scripted):
    def propose_batch(self, requests, budgets):
        self.log.append(("batch", [request.request_id for request in requests]))
        if self.fails_in == "batch":
            raise RuntimeError("batch is broken")
        return [[Branch([1, 2, 3][:budget], self.name)] for budget in budgets]


def pool_of(*speculators: Scripted, n_requests: int = 1) -> SpeculatorPool:
    """A pool with requests of the method that joins all speculators."""
    pool = SpeculatorPool(extra={s.name: (lambda options, s=s: s) for s in speculators})
    for i in range(n_requests):
        begin(pool, i, "+".join(s.name for s in speculators))
    return pool


def begin(pool: SpeculatorPool, request_id: int, method: str, prompt=(1, 2, 3), **fields: Any) -> None:
    pool.begin(request_id, Request(list(prompt), SamplingParams(), method, **fields), vocab_size=48)


def test_requests_of_all_methods_decode_together_to_their_plain_texts() -> None:
    target = HashTarget(48, n_successors=2)
    pool = SpeculatorPool()
    texts = {i: [i + 1, 2 * i, 7] for i in range(2 * len(COMBINED))}
    prompts = {i: list(text) for i, text in texts.items()}
    for i, text in texts.items():
        begin(pool, i, COMBINED[i % len(COMBINED)], text)
    outcomes = [(i, Outcome([target.next_token(text)], EMPTY_TREE)) for i, text in texts.items()]
    for _ in range(20):
        for i, outcome in outcomes:
            texts[i].extend(outcome.tokens)
        drafts = pool.advance(outcomes, dict.fromkeys(texts, 32))
        assert set(drafts) == set(texts)
        outcomes = [(i, target.score(texts[i], compose(drafts[i], 32))) for i in texts]
    for i, text in texts.items():
        assert text == prompts[i] + target.generate(prompts[i], len(text) - len(prompts[i]))


def keys_of(speculator: Any) -> Iterator[Any]:
    """The keys of all dicts and sets of a speculator and its parts: request ids and scopes."""
    for name, value in vars(speculator).items():
        if isinstance(speculator, SuccessorModels) and name == "_idle":  # models of ended requests, for the next ones
            models = [known.model for kept in value.values() for known in kept]
            assert not any(table.keys.any() for model in models for table in (model.text, model.target))
        elif isinstance(value, dict | set):
            yield from value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, TenantState) and inner is not value:
                yield from inner
            if hasattr(inner, "propose") or isinstance(inner, SuccessorModels):
                yield from keys_of(inner)


@pytest.mark.parametrize("method", COMBINED)
@pytest.mark.parametrize("warm", [False, True])
def test_no_state_survives_its_request_except_by_scope(method: str, warm: bool) -> None:
    pool = SpeculatorPool(warmed(SpeculatorOptions()) if warm else None)
    scopes = ["a", "b", "a"] if warm else [""] * 3
    for i, scope in enumerate(scopes):
        begin(pool, i, method, (1, 2, 3, 1, 2), scope=scope)
    pool.advance([(i, FIRST) for i in range(3)], dict.fromkeys(range(3), 64))
    assert pool.n_live == 3
    for i in (0, 1, 2, 2):  # a second time is harmless
        pool.end(i)
    assert pool.n_live == 0
    assert set(keys_of(pool._speculators[method])) <= set(scopes)


def test_a_request_begins_once_and_again_after_its_end() -> None:
    pool = SpeculatorPool()
    begin(pool, 1, "pld")
    with pytest.raises(ValueError, match="begun already"):
        begin(pool, 1, "pld")
    pool.end(1)
    begin(pool, 1, "pld")
    for method in ("magic", "eagle"):
        with pytest.raises(UnknownMethodError):
            begin(pool, 2, method)
        with pytest.raises(UnknownMethodError):
            pool.needs(method)
    assert pool.n_live == 1
    assert pool.needs("pld") == Needs()
    assert pool.needs("pld+spectra-core").probe_top_k == 32


def test_live_requests_with_a_budget_get_drafts_after_their_tokens_are_in_the_context() -> None:
    speculator, seen = Scripted("a"), []
    pool = pool_of(speculator, n_requests=3)
    pool.end(2)
    speculator.observe = lambda request, outcome: seen.append(request.context.view.tolist())
    drafts = pool.advance([(0, FIRST), (1, FIRST), (2, FIRST), (9, FIRST)], {0: 2, 2: 5, 9: 5})
    assert drafts == {0: [Branch([1, 2], "a")]}
    assert seen == [[1, 2, 3, 5]] * 2
    assert pool.advance([], {0: 0}) == {0: []}


@pytest.mark.parametrize("fails_in", ["", "batch"])
def test_one_call_drafts_for_a_batch_and_a_failing_one_is_repeated_request_by_request(fails_in: str) -> None:
    speculator = ScriptedBatch("a", fails_in=fails_in)
    pool = pool_of(speculator, n_requests=3)
    drafts = pool.advance([], {0: 1, 1: 2, 2: 0})
    assert drafts == {0: [Branch([1], "a")], 1: [Branch([1, 2], "a")], 2: []}
    assert ("batch", [0, 1]) in speculator.log
    assert (("propose", 0) in speculator.log) == (fails_in == "batch")


class ScriptedBatchObserver(Scripted):
    """Observes batches, and notes the lengths of the contexts."""

    def observe_batch(self, requests, outcomes):
        self.log.append(("batch", [(request.request_id, len(request.context)) for request in requests]))
        if self.fails_in == "batch":
            raise RuntimeError("batch is broken")
        assert len(requests) == len(outcomes)


@pytest.mark.parametrize("fails_in", ["", "batch"])
def test_one_call_observes_a_batch_and_a_failing_one_is_repeated_request_by_request(fails_in: str) -> None:
    speculator = ScriptedBatchObserver("a", fails_in=fails_in)
    pool = pool_of(speculator, n_requests=3)
    outcome = Outcome([5, 6], EMPTY_TREE)
    pool.advance([(0, FIRST), (2, outcome), (9, FIRST)], {})
    pool.advance([(0, outcome), (0, FIRST)], {})  # one after the other
    batches = [calls for name, calls in speculator.log if name == "batch"]
    assert batches == [[(0, 4), (2, 5)], [(0, 6)], [(0, 7)]]
    assert speculator.called("observe") == ([0, 2, 0, 0] if fails_in else [])


class ScriptedSettling(Scripted):
    """Ends the rests of requests with even ids."""

    def settle(self, requests, outcomes, seconds):
        assert all(
            request.context.view[-1] == outcome.tokens[-1] for request, outcome in zip(requests, outcomes, strict=True)
        )
        self.log.append(("settle", [request.request_id for request in requests], seconds))
        if self.fails_in == "settle":
            raise RuntimeError("settle is broken")
        return [request.request_id for request in requests if request.request_id % 2 == 0]


def settling_pool(*speculators: Scripted) -> SpeculatorPool:
    """A pool with two requests per speculator, in turn."""
    pool = SpeculatorPool(extra={s.name: (lambda options, s=s: s) for s in speculators})
    for i in range(2 * len(speculators)):
        begin(pool, i, speculators[i % len(speculators)].name)
    return pool


def test_speculators_with_outcomes_or_in_the_last_round_settle_and_others_observe() -> None:
    settling, idle, drafting, plain = ScriptedSettling("a"), ScriptedSettling("b"), ScriptedSettling("c"), Scripted("d")
    pool = settling_pool(settling, idle, drafting, plain)
    pool.advance([], {2: 4})
    assert pool.settle([(0, FIRST), (3, FIRST), (4, FIRST), (7, FIRST), (9, FIRST)], 0.5) == {0, 4, 9}
    assert settling.log[2:] == [("settle", [0, 4], 0.5)]
    assert idle.log[2:] == []
    assert drafting.log[2:] == [("propose", 2), ("settle", [], 0.5)]
    assert plain.log[2:] == [("observe", 3), ("observe", 7)]
    assert pool.settle([], 0.0) == set()
    assert len(settling.log) == 3
    assert len(drafting.log) == 4


def test_a_speculator_that_fails_to_settle_ends_no_rest_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = ScriptedSettling("a", fails_in="settle"), ScriptedSettling("b")
    pool = settling_pool(broken, sound)
    for _ in range(3):
        assert pool.settle([(i, FIRST) for i in range(4)], 0.0) == set()
    assert [record.message for record in caplog.records] == ["a failed to settle; further failures are not logged"]
    assert len(sound.log) == len(broken.log) == 2 + 3
    assert pool.advance([], {0: 2})[0]


def test_reset_ends_all_requests() -> None:
    speculator = Scripted("a")
    pool = pool_of(speculator)
    pool.reset()
    assert pool.n_live == 0
    assert speculator.log == [("begin", 0), ("end", 0)]


@pytest.mark.parametrize("fails_in", ["begin", "propose", "observe"])
def test_a_failing_method_drafts_nothing_more_for_that_request_and_logs_once(fails_in: str, caplog: Any) -> None:
    speculator = Scripted("bad", fails_in=fails_in)
    pool = pool_of(speculator)
    for _ in range(3):
        drafts = pool.advance([(0, FIRST)], {0: 4})
    assert drafts == {0: []}
    [failure] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "bad" in failure.getMessage()
    pool.end(0)
    assert speculator.log[-1] == ("end", 0)


def proposers(drafts: dict[int, list[Branch]]) -> dict[int, set[str]]:
    return {i: {name for b in branches for names in b.proposers for name in names} for i, branches in drafts.items()}


def test_a_failure_harms_neither_other_parts_nor_other_requests(caplog: Any) -> None:
    good, bad = Scripted("good"), Scripted("bad", [Branch([9, 9], "bad")])
    pool = pool_of(bad, good, n_requests=2)
    bad.fails_in = "propose"
    assert proposers(pool.advance([], {0: 8})) == {0: {"good"}}
    bad.fails_in = ""
    assert proposers(pool.advance([], {0: 8, 1: 8})) == {0: {"good"}, 1: {"bad", "good"}}
    assert len(caplog.records) == 1
    bad.fails_in = "end"
    pool.end(0)
    pool.end(1)
    assert good.log[-2:] == [("end", 0), ("end", 1)]
    assert set(keys_of(pool._speculators["bad+good"])) <= {""}


def test_the_scope_unused_for_longest_is_forgotten() -> None:
    kept: TenantState[list[int]] = TenantState()
    for i in range(MOST):
        kept.of(f"tenant {i}", list).append(i)
    assert kept.of("tenant 0", list) == [0]  # used again: tenant 1 is the oldest now
    kept.keep("another", [])
    assert len(kept) == MOST
    assert "tenant 1" not in kept
    assert kept.of("tenant 0", list) == [0]
    assert kept.of("tenant 1", list) == []


def retrieving() -> Spectra:
    return Spectra(None, SpectraRetrieval(FixedLibrary(MemoryIndex([[1, 2, 3], [1, 2, 5]]))))


@pytest.mark.parametrize(
    "make", [lambda: Combined([PromptLookup(), Anpd()]), lambda: Auto([PromptLookup()]), retrieving]
)
def test_success_in_one_scope_changes_no_draft_of_another(make: Callable[[], Speculator]) -> None:
    method = make()

    def draft(scope: str, request_id: int, n_right: int = 0) -> list[Any]:
        request = view((1, 2, 3, 1, 2, 4, 1, 2), request_id, scope=scope)
        method.begin(request)
        branches = method.propose(request, 12)
        for _ in range(n_right):
            request.context.extend([1, 2])  # the same place again
            tree = compose(branches, 12)
            method.observe(request, Outcome([tree.tokens[0], 9], tree, (0,)))
            branches = method.propose(request, 12) or branches
        method.end(request)
        return [(list(branch.tokens), branch.scores) for branch in branches if not branch.probe]

    before = draft("b", 0)
    taught = draft("a", 1, n_right=20)
    assert before
    assert draft("b", 0) == before
    assert taught != before or isinstance(method, Auto)  # auto's drafts here are pld's claims, kept as they are


SHARED: list[Callable[[], Speculator]] = [
    lambda: SuffixDecoding(SuffixConfig(mode="paper", shared=True)),
    lambda: Successors(SuccessorConfig(shared=True, target_rows=64, text_rows=64)),
    lambda: TokenRecycling(TokenRecyclingConfig("paper", shared=True)),
    lambda: Goose(GooseConfig(shared=True)),
    lambda: Stand(StandConfig(shared=True)),
]


@pytest.mark.parametrize("make", SHARED)
def test_a_scope_drafts_from_its_own_requests_until_it_is_forgotten(make: Callable[[], Speculator]) -> None:
    method, target = make(), HashTarget(64)

    def write(scope: str) -> None:
        request = view((1, 2), 0, scope=scope)
        method.begin(request)
        observe_prompt(method, request, target)
        request.context.extend([7, 8, 7, 8])
        method.observe(request, Outcome([7, 8, 7, 8], EMPTY_TREE))
        method.end(request)

    def knows(scope: str) -> bool:
        last = 7 if isinstance(method, SuffixDecoding) else 2
        return tokens_of(first_draft(method, view((3, last), 1, scope=scope), 8)) != []

    write("first")
    assert knows("first")
    assert not knows("another")
    for i in range(MOST):
        write(f"tenant {i}")
    assert knows(f"tenant {MOST - 1}")
    assert not knows("first")


TARGET = HashTarget(200, 3)
LENGTH = 5 * PIECE + 77


def long_prompt() -> list[int]:
    text = [7]
    while len(text) < LENGTH:
        text.append(len(text) * 7 % 200 if len(text) % 9 == 0 else TARGET.next_token(text))
    return text


def drafts_of(name: str, n_chunks: int, n_read: int = 0) -> list[list[Branch]]:
    """Drafts of twelve steps after a prompt that is observed in ``n_chunks`` chunks of ``n_read`` tokens each."""
    method, request = create(name), view(long_prompt(), vocab_size=TARGET.vocab_size, seed=3)
    method.begin(request)
    for _ in range(n_chunks - 1):
        method.observe(request, Outcome((), EMPTY_TREE, n_read=n_read))
    outcome = Outcome((TARGET.next_token(request.context.view.tolist()),), EMPTY_TREE, n_read=n_read)
    made = []
    for _ in range(12):
        request.context.extend(outcome.tokens)
        method.observe(request, outcome)
        made.append(method.propose(request, 64))
        outcome = TARGET.score(request.context.view[-2:].tolist(), compose(made[-1], 64))
    return made


@pytest.mark.parametrize("name", ["spectra-core", "spectra", "lookahead", "suffix"])
def test_drafts_after_chunks_are_those_of_a_prompt_learnt_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_pieces = [drafts_of(name, 6), drafts_of(name, 2, n_read=-(-LENGTH // 2))]
    from_cache = drafts_of(name, 1)  # the prefix cache had the whole prompt: nothing was read in chunks
    for module in (core, lookahead, successors):
        monkeypatch.setattr(module, "PIECE", LENGTH)
    at_once = drafts_of(name, 1)
    assert any(at_once)
    assert in_pieces == [at_once, at_once]
    if name == "suffix":  # counts of successors are complete before the first draft
        assert from_cache == at_once
    elif name != "spectra":  # learnt step by step; nothing is probed before all of it is known
        unprobed = [not any(branch.probe for branch in branches) for branches in from_cache]
        assert unprobed == [True] * 4 + [False] * (len(from_cache) - 4)
