"""``auto`` with branches that scores do not rank: draws from a distribution, and probes."""

import numpy as np
import pytest

from engine.composer import compose
from engine.protocol import Branch, Needs
from speculators.auto.speculator import Auto
from tests.support.auto_sources import FREE, TARGET, VOCAB, Decoding, Fixed, Source, line, make_request


def drawn(tokens, name="drawn"):
    return Branch(tokens, name, q=np.full((len(tokens), VOCAB), 1 / VOCAB, np.float32))


@pytest.mark.parametrize("costs", [None, FREE], ids=["no costs", "free"])
def test_drawn_branches_and_probes_pass_untouched_where_nodes_are_free(costs):
    for special in (drawn([1, 2]), Branch([1, 2], "probing", probe=True)):
        rest = Branch([3, 4], "rest", scores=[0.9, 0.9])
        auto = Auto([Fixed([special]), Fixed([rest])], costs)
        request = make_request()
        auto.begin(request)
        for _ in range(5):
            drafts = auto.propose(request, 32)
            assert any(branch is special for branch in drafts)
            assert sum(len(branch.tokens) for branch in drafts) == 4
            outcome = TARGET.score(request.context.view.tolist(), compose(drafts, 32))
            request.context.extend(outcome.tokens)
            auto.observe(request, outcome)


@pytest.mark.parametrize("per_row", [0.05, 0.2, 0.3, 1.0])
def test_of_drawn_branches_a_first_part_is_kept_whatever_was_drawn(per_row):
    """How many draws count must not depend on them, or the test against ``q`` would not hold."""
    sizes = set()
    for tokens in ([1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4], [3, 3, 3, 3, 3, 3]):
        auto = Auto([Fixed([drawn(tokens)])], line(per_row))
        request = make_request()
        auto.begin(request)
        drafts = auto.propose(request, 32)
        sizes.add(sum(len(branch.tokens) for branch in drafts))
        for branch in drafts:
            assert branch.tokens == tokens[: len(branch.tokens)]
            assert branch.q.shape == (len(branch.tokens), VOCAB)
            assert branch.scores is None
    assert len(sizes) == 1
    assert (sizes == {0}) == (per_row == 1.0)
    assert sizes != {6}


def test_a_drawn_branch_that_is_always_right_is_kept_longer_and_one_that_is_wrong_is_dropped():
    class Drawn(Source):
        def propose(self, request, budget):
            (branch,) = super().propose(request, budget)
            return [drawn(branch.tokens)]

    right, wrong = Decoding(Auto([Drawn()], line(0.2))), Decoding(Auto([Drawn(accuracy=0.0)], line(0.2)))
    good, bad = right.steps(60), wrong.steps(60)
    assert good[0] == bad[0]
    assert good[-1] > good[0]
    assert sum(bad[-20:]) <= 2  # it is tried again now and then


class Probing(Source):
    """Guesses nothing; probes eight branches of four nodes."""

    needs = Needs(probe_top_k=4)

    def propose(self, request, budget):
        self.asked.append(request.request_id)
        return [Branch([row, 1, 2, 3], self.name, probe=True) for row in range(8)]


@pytest.mark.parametrize(("per_row", "least", "most"), [(0.0, 32, 32), (0.04, 4, 8), (0.2, 0, 0), (100.0, 0, 0)])
def test_probes_are_kept_as_far_as_they_are_paid_for(per_row, least, most):
    """What they bring is taken for a third of a token a step at first."""
    (n,) = Decoding(Auto([Probing()], line(per_row))).step()
    assert least <= n <= most
    assert n % 4 == 0  # whole or not at all


@pytest.mark.parametrize("per_row", [0.002, 0.02, 0.5])
def test_probes_that_bring_nothing_are_given_up_and_tried_again_some_day(per_row):
    sizes = Decoding(Auto([Probing()], line(per_row))).steps(1500)
    assert sum(sizes[200:]) * per_row < 0.02 * 1300  # seconds, of steps that take one
    if per_row < 0.05:
        assert sizes[0] > 0
        assert any(sizes[200:])


def test_guesses_beside_probes_are_ranked_and_charged():
    guess = Branch([5, 6, 7, 8], "guess", scores=[0.9, 0.9, 0.1, 0.1])
    auto = Auto([Fixed([guess, *Probing().propose(make_request(), 32)], name="both")], line(0.3))
    request = make_request()
    auto.begin(request)
    assert [branch.tokens for branch in auto.propose(request, 64)] == [[5, 6]]


def test_drawn_branches_of_one_request_leave_the_others_to_their_estimates():
    class Mixed(Source):
        def propose(self, request, budget):
            if request.request_id % 2:
                return super().propose(request, budget)
            return [drawn([1, 2])]

    for claim, sizes in ((0.9, [1, 5, 1, 5]), (0.05, [1, 0, 1, 0])):
        decoding = Decoding(Auto([Mixed(claim, depth=5)], line(0.1)), 4)
        assert decoding.step() == sizes
