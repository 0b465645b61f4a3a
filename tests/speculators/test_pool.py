import logging

import pytest

from engine.composer import compose
from engine.errors import UnknownMethodError
from engine.protocol import Branch, Needs, Outcome
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE
from speculators.methods import STANDALONE
from speculators.mixing.combined import CombinationConfig, Combined
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from speculators.successors.models import Models
from speculators.testing import HashTarget

COMBINED = [*STANDALONE, "pld+spectra-core", "suffix+token-recycling", "token-recycling+suffix+spectra-core+lookahead"]


class Scripted:
    """Drafts the same chain always and writes down what it is told."""

    needs = Needs()

    def __init__(self, name, tokens=(1, 2, 3), fails_in=(), log=None):
        self.name = name
        self.tokens = list(tokens)
        self.fails_in = fails_in
        self.log = [] if log is None else log

    def _note(self, what, request):
        self.log.append((self.name, what, request.request_id))
        if what in self.fails_in:
            raise RuntimeError(f"{what} is broken")

    def begin(self, request):
        self._note("begin", request)

    def propose(self, request, budget):
        self._note(f"propose {budget}", request)
        self._note("propose", request)
        return [Branch(self.tokens[:budget], self.name)]

    def observe(self, request, outcome):
        self._note("observe", request)

    def end(self, request):
        self._note("end", request)


class ScriptedBatch(Scripted):
    def propose_batch(self, requests, budgets):
        self.log.append((self.name, "batch", [request.request_id for request in requests]))
        if "batch" in self.fails_in:
            raise RuntimeError("batch is broken")
        return [[Branch(self.tokens[:budget], self.name)] for budget in budgets]


def pool_of(*speculators):
    return SpeculatorPool(extra={s.name: (lambda options, s=s: s) for s in speculators})


def begin(pool, request_id, method, prompt=(1, 2, 3)):
    pool.begin(request_id, Request(list(prompt), SamplingParams(), method), vocab_size=48)


FIRST = Outcome([5], EMPTY_TREE)
IN_ORDER = CombinationConfig(mode="priority")


def test_requests_of_all_methods_decode_together_to_their_plain_texts():
    target = HashTarget(48, n_successors=2)
    pool = SpeculatorPool()
    texts = {i: [i + 1, 2 * i, 7] for i in range(2 * len(COMBINED))}
    prompts = {i: list(text) for i, text in texts.items()}
    for i, text in texts.items():
        begin(pool, i, COMBINED[i % len(COMBINED)], text)
    outcomes = [(i, Outcome([target.next_token(text)], EMPTY_TREE)) for i, text in texts.items()]
    for _ in range(60):
        for i, outcome in outcomes:
            texts[i].extend(outcome.tokens)
        drafts = pool.advance(outcomes, dict.fromkeys(texts, 32))
        assert set(drafts) == set(texts)
        outcomes = [(i, target.score(texts[i], compose(drafts[i], 32))) for i in texts]
    for i, text in texts.items():
        assert text == prompts[i] + target.generate(prompts[i], len(text) - len(prompts[i]))
    for i in texts:
        pool.end(i)
    assert pool.n_live == 0


@pytest.mark.parametrize("method", COMBINED)
def test_no_state_survives_its_request(method):
    pool = SpeculatorPool()
    for i in range(5):
        begin(pool, i, method)
    pool.advance([(i, FIRST) for i in range(5)], dict.fromkeys(range(5), 64))
    assert pool.n_live == 5
    for i in range(5):
        pool.end(i)
        pool.end(i)  # a second time is harmless
    assert pool.n_live == 0
    kept_by_scope = {""}  # how far estimates could be trusted; no text
    assert set(_states(pool._speculators[method])) <= kept_by_scope


def test_what_is_shared_is_kept_by_scope_and_nothing_by_request():
    pool = SpeculatorPool(SpeculatorOptions().warm())
    for i, scope in enumerate(["a", "b", "a"]):
        request = Request([1, 2, 3, 1, 2], SamplingParams(), "token-recycling+suffix+spectra-core", scope=scope)
        pool.begin(i, request, 48)
    pool.advance([(i, FIRST) for i in range(3)], dict.fromkeys(range(3), 64))
    for i in range(3):
        pool.end(i)
    assert set(_states(pool._speculators["token-recycling+suffix+spectra-core"])) == {"a", "b"}
    pool.reset()
    assert pool._speculators == {}


def _states(speculator):
    """The keys of everything below a speculator, its parts included: request ids and scopes."""
    for name, value in vars(speculator).items():
        if isinstance(speculator, Models) and name == "_idle":  # models of ended requests, for the next ones
            models = [known.model for kept in value.values() for known in kept]
            assert not any(table.keys.any() for model in models for table in (model.text, model.target))
        elif isinstance(value, dict | set):
            yield from value
        for inner in value if isinstance(value, list) else [value]:
            if hasattr(inner, "propose") or isinstance(inner, Models):
                yield from _states(inner)


def test_a_request_can_come_again_after_its_end():
    pool = SpeculatorPool()
    begin(pool, 1, "pld")
    with pytest.raises(ValueError, match="begun already"):
        begin(pool, 1, "pld")
    pool.end(1)
    begin(pool, 1, "pld")
    assert pool.n_live == 1


def test_an_unknown_method_leaves_nothing_behind():
    pool = SpeculatorPool()
    for method in ["magic", "eagle"]:
        with pytest.raises(UnknownMethodError):
            begin(pool, 1, method)
        with pytest.raises(UnknownMethodError):
            pool.needs(method)
    assert pool.n_live == 0


def test_needs_are_the_methods():
    pool = SpeculatorPool()
    assert pool.needs("pld") == Needs()
    assert pool.needs("pld+spectra-core").probe_top_k == 32


def test_only_requests_with_a_budget_get_drafts_and_ended_ones_are_passed_over():
    pool = pool_of(Scripted("a"))
    for i in range(3):
        begin(pool, i, "a")
    pool.end(2)
    drafts = pool.advance([(0, FIRST), (1, FIRST), (2, FIRST), (9, FIRST)], {0: 2, 2: 5, 9: 5})
    assert drafts == {0: [Branch([1, 2], "a")]}
    assert pool.advance([], {0: 0}) == {0: []}


def test_tokens_are_in_the_context_before_they_are_observed():
    seen = []
    speculator = Scripted("a")
    speculator.observe = lambda request, outcome: seen.append(request.context.view.tolist())
    pool = pool_of(speculator)
    begin(pool, 0, "a", [7, 8])
    pool.advance([(0, FIRST)], {})
    assert seen == [[7, 8, 5]]


def test_one_call_drafts_for_all_requests_of_a_batch_method():
    speculator = ScriptedBatch("a")
    pool = pool_of(speculator)
    for i in range(3):
        begin(pool, i, "a")
    drafts = pool.advance([], {0: 1, 1: 2, 2: 0})
    assert [len(drafts[i]) for i in range(3)] == [1, 1, 0]
    assert ("a", "batch", [0, 1]) in speculator.log


def test_reset_ends_everything_and_starts_cold():
    speculator = Scripted("a")
    pool = pool_of(speculator)
    begin(pool, 0, "a")
    begin(pool, 1, "spectra-core")
    pool.reset()
    assert pool.n_live == 0
    assert ("a", "end", 0) in speculator.log
    assert pool._speculators == {}


@pytest.mark.parametrize("fails_in", ["begin", "propose", "observe"])
def test_a_failing_method_drafts_nothing_more_for_that_request_and_is_logged_once(fails_in, caplog):
    speculator = Scripted("bad", fails_in=(fails_in,))
    pool = pool_of(speculator)
    begin(pool, 0, "bad")
    for _ in range(3):
        drafts = pool.advance([(0, FIRST)], {0: 4})
    assert drafts == {0: []}
    failures = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(failures) == 1
    assert "bad" in failures[0].getMessage()
    pool.end(0)
    assert speculator.log[-1] == ("bad", "end", 0)


def proposers(drafts):
    return {i: {name for b in branches for names in b.proposers for name in names} for i, branches in drafts.items()}


def test_a_failure_touches_neither_other_parts_nor_other_requests(caplog):
    good, bad = Scripted("good", [1, 2]), Scripted("bad", [9, 9])
    pool = pool_of(good, bad)
    for i in range(2):
        begin(pool, i, "bad+good")
    bad.fails_in = ("propose",)
    assert proposers(pool.advance([], {0: 8})) == {0: {"good"}}
    bad.fails_in = ()
    assert proposers(pool.advance([], {0: 8, 1: 8})) == {0: {"good"}, 1: {"bad", "good"}}
    assert len(caplog.records) == 1


def test_a_failing_end_hinders_no_other_request(caplog):
    good, bad = Scripted("good"), Scripted("bad", fails_in=("end",))
    pool = pool_of(good, bad)
    begin(pool, 0, "bad+good")
    pool.end(0)
    assert ("good", "end", 0) in good.log
    assert list(_states(pool._speculators["bad+good"])) == []


def test_a_failing_batch_is_asked_one_by_one(caplog):
    speculator = ScriptedBatch("a", fails_in=("batch",))
    pool = pool_of(speculator)
    for i in range(2):
        begin(pool, i, "a")
    assert pool.advance([], {0: 1, 1: 1}) == {i: [Branch([1], "a")] for i in range(2)}


def test_combined_branches_come_in_priority_order_within_the_budget(new_request):
    first, second, third = Scripted("a", range(40)), Scripted("b", range(50, 90)), Scripted("c", range(100, 140))
    branches = Combined([first, second, third], IN_ORDER).propose(new_request([1]), 30)
    assert [branch.source for branch in branches] == ["a", "b", "c"]
    assert [len(branch.tokens) for branch in branches] == [20, 5, 5]


def test_what_an_earlier_part_leaves_passes_on(new_request):
    branches = Combined([Scripted("a", [1, 2]), Scripted("b", range(50, 90))], IN_ORDER).propose(new_request([1]), 32)
    assert [len(branch.tokens) for branch in branches] == [2, 30]


def test_nodes_shared_between_parts_are_paid_once(new_request):
    parts = [Scripted("a", [1, 2, 3]), Scripted("b", [1, 2, 3]), Scripted("c", range(9, 40))]
    branches = Combined(parts, IN_ORDER).propose(new_request([1]), 12)
    assert len(branches[2].tokens) == 9
    assert len(compose(branches, 12)) == 12


def test_all_parts_hear_everything(new_request):
    log = []
    combined = Combined([Scripted("a", log=log), Scripted("b", log=log)])
    request = new_request([1])
    combined.begin(request)
    combined.observe(request, FIRST)
    combined.end(request)
    assert log == [(name, what, 0) for what in ("begin", "observe", "end") for name in ("a", "b")]


def test_parts_that_need_different_layers_cannot_be_combined():
    first, second = Scripted("a"), Scripted("b")
    first.needs, second.needs = Needs(hidden_layer=1), Needs(hidden_layer=2)
    with pytest.raises(UnknownMethodError, match=r"a\+b"):
        Combined([first, second])
