"""What scopes leave to later requests stays theirs, and stays bounded."""

import pytest

from engine.composer import compose
from engine.protocol import Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE, ROOT, TokenTree
from speculators.auto.calibration import DepthCalibration
from speculators.auto.speculator import Auto
from speculators.mixing.combined import Combined
from speculators.mixing.estimates import Estimates
from speculators.ngrams.anpd import Anpd
from speculators.ngrams.pld import PromptLookup
from speculators.ngrams.suffix import SuffixConfig, SuffixDecoding
from speculators.successors.config import SuccessorConfig
from speculators.successors.speculator import Successors
from speculators.tenant_state import MOST, TenantState


def test_the_scope_unused_for_longest_gives_way():
    kept: TenantState[list[int]] = TenantState()
    for i in range(MOST):
        kept.of(f"tenant {i}", list).append(i)
    assert kept.of("tenant 0", list) == [0]  # used again: tenant 1 is the oldest now
    kept.keep("another", [])
    assert len(kept) == MOST
    assert "tenant 1" not in kept
    assert kept.of("tenant 0", list) == [0]
    assert kept.of("tenant 1", list) == []


def request_of(scope, request_id, context=(1, 2)):
    return RequestView.of(request_id, Request(context, SamplingParams(), scope=scope), 64)


def accepted(tree, n_tokens=2):
    """The first node was right, and a bonus token."""
    return Outcome([tree.tokens[0], 9][:n_tokens], tree, (0,))


def test_what_one_scope_taught_the_estimates_stays_there():
    estimates = Estimates()
    for request_id, scope in enumerate(("a", "b")):
        estimates.begin(request_id, scope)
    for _ in range(20):
        estimates.observe(0, accepted(TokenTree([5], [ROOT])), [{"pld": 0.5}])
    estimates.begin(2, "a")
    estimates.begin(3, "b")
    for claim in (None, 0.5):
        assert estimates.probability(2, "pld", 1, claim) > estimates.probability(3, "pld", 1, claim)
        assert estimates.probability(3, "pld", 1, claim) == estimates.probability(1, "pld", 1, claim)
    assert estimates.probability(3, "pld", 1, 0.5) == 0.5


def first_drafts(method):
    """A draft in scope b, twenty right ones in scope a, and another first draft in scope b."""

    def draft(scope, request_id):
        request = request_of(scope, request_id, (1, 2, 3, 1, 2, 4, 1, 2))
        method.begin(request)
        branches = method.propose(request, 6)
        for _ in range(20 if scope == "a" else 0):
            tree = compose(branches, 6)
            request.context.extend([1, 2])  # the same place again
            method.observe(request, accepted(tree))
            branches = method.propose(request, 6) or branches
        method.end(request)
        return [(list(branch.tokens), list(branch.scores)) for branch in branches]

    return draft("b", 0), draft("a", 1), draft("b", 2)


def test_what_a_combination_learnt_in_one_scope_changes_no_draft_of_another():
    combined = Combined([PromptLookup(), Anpd()])
    before, taught, after = first_drafts(combined)
    assert before
    assert before == after != taught
    assert combined._estimates._shared["a"].tried
    assert combined._estimates._shared["b"].tried == {}


def test_what_auto_learnt_in_one_scope_changes_no_draft_of_another():
    auto = Auto([PromptLookup()])
    before, _, after = first_drafts(auto)
    assert before
    assert before == after
    claimed = {name: sum(sum(one.claimed) for one in auto._scopes[name].calibrations) for name in "ab"}
    assert claimed["a"] > 0 == claimed["b"]


@pytest.mark.parametrize(
    "method", [SuffixDecoding(SuffixConfig(mode="paper", shared=True)), Successors(SuccessorConfig(shared=True))]
)
def test_the_text_of_another_scope_is_not_drafted_and_old_scopes_go(method):
    for i in range(MOST + 5):
        request = request_of(f"tenant {i}", i, (1, 2))
        method.begin(request)
        request.context.extend([7, 8, 7, 8])
        method.observe(request, Outcome([7, 8, 7, 8], EMPTY_TREE))
        method.end(request)
    kept = method._earlier if isinstance(method, SuffixDecoding) else method._models._shared
    assert len(kept) == MOST

    def drafted(scope):
        request = request_of(scope, 1000, (3, 7))
        method.begin(request)
        tokens = [int(token) for branch in method.propose(request, 8) for token in branch.tokens]
        method.end(request)
        return tokens

    assert 8 in drafted(f"tenant {MOST + 4}")
    assert 8 not in drafted("another")


def test_a_calibration_without_evidence_changes_nothing():
    assert set(DepthCalibration().factors(DepthCalibration())) == {1.0}
