"""Many requests of many methods in one pool: plain texts, no state left, and failures that stay inside."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from engine.composer import compose
from engine.errors import UnknownMethodError
from engine.protocol import Branch, Needs, Outcome
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE
from speculators.methods import STANDALONE
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from speculators.successors.models import Models
from speculators.testing import HashTarget

COMBINED = [*STANDALONE, "pld+spectra-core", "suffix+token-recycling", "token-recycling+suffix+spectra-core+lookahead"]
FIRST = Outcome([5], EMPTY_TREE)


class Scripted:
    """Drafts the same chain always, and logs every call."""

    needs = Needs()

    def __init__(self, name, tokens=(1, 2, 3), fails_in=()):
        self.name, self.tokens, self.fails_in = name, list(tokens), fails_in
        self.log: list[Any] = []

    def _call(self, what, request):
        self.log.append((what, request.request_id))
        if what in self.fails_in:
            raise RuntimeError(f"{what} is broken")

    def begin(self, request):
        self._call("begin", request)

    def propose(self, request, budget):
        self._call("propose", request)
        return [Branch(self.tokens[:budget], self.name)]

    def observe(self, request, outcome):
        self._call("observe", request)

    def end(self, request):
        self._call("end", request)


class ScriptedBatch(Scripted):
    def propose_batch(self, requests, budgets):
        self.log.append([request.request_id for request in requests])
        if "batch" in self.fails_in:
            raise RuntimeError("batch is broken")
        return [[Branch(self.tokens[:budget], self.name)] for budget in budgets]


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
        if isinstance(speculator, Models) and name == "_idle":  # models of ended requests, for the next ones
            models = [known.model for kept in value.values() for known in kept]
            assert not any(table.keys.any() for model in models for table in (model.text, model.target))
        elif isinstance(value, dict | set):
            yield from value
        for inner in value if isinstance(value, list) else [value]:
            if hasattr(inner, "propose") or isinstance(inner, Models):
                yield from keys_of(inner)


@pytest.mark.parametrize("method", COMBINED)
@pytest.mark.parametrize("warm", [False, True])
def test_no_state_survives_its_request_except_by_scope(method: str, warm: bool) -> None:
    pool = SpeculatorPool(SpeculatorOptions().warm() if warm else None)
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


@pytest.mark.parametrize("fails_in", [(), ("batch",)])
def test_one_call_drafts_for_a_batch_and_a_failing_one_is_repeated_request_by_request(fails_in: tuple[str]) -> None:
    speculator = ScriptedBatch("a", fails_in=fails_in)
    pool = pool_of(speculator, n_requests=3)
    drafts = pool.advance([], {0: 1, 1: 2, 2: 0})
    assert drafts == {0: [Branch([1], "a")], 1: [Branch([1, 2], "a")], 2: []}
    assert [0, 1] in speculator.log
    assert (("propose", 0) in speculator.log) == (fails_in != ())


def test_reset_ends_all_requests() -> None:
    speculator = Scripted("a")
    pool = pool_of(speculator)
    pool.reset()
    assert pool.n_live == 0
    assert speculator.log == [("begin", 0), ("end", 0)]


@pytest.mark.parametrize("fails_in", ["begin", "propose", "observe"])
def test_a_failing_method_drafts_nothing_more_for_that_request_and_logs_once(fails_in: str, caplog: Any) -> None:
    speculator = Scripted("bad", fails_in=(fails_in,))
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
    good, bad = Scripted("good", [1, 2]), Scripted("bad", [9, 9])
    pool = pool_of(bad, good, n_requests=2)
    bad.fails_in = ("propose",)
    assert proposers(pool.advance([], {0: 8})) == {0: {"good"}}
    bad.fails_in = ()
    assert proposers(pool.advance([], {0: 8, 1: 8})) == {0: {"good"}, 1: {"bad", "good"}}
    assert len(caplog.records) == 1
    bad.fails_in = ("end",)
    pool.end(0)
    pool.end(1)
    assert good.log[-2:] == [("end", 0), ("end", 1)]
    assert set(keys_of(pool._speculators["bad+good"])) <= {""}
