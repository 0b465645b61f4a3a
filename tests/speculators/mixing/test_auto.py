"""``auto``: the nodes that pay, and none where none do; what sources claim is believed as far as it comes true."""

import itertools
import math
import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import BatchSpeculator, Branch, Needs, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.step_cost import StepCosts
from engine.tree import EMPTY_TREE, ROOT
from speculators.draft_model.speculator import DraftModelConfig
from speculators.mixing.auto import FIRST_DRAFTING, Auto, AutoConfig
from speculators.ngrams.pld import PromptLookup
from speculators.registry import SpeculatorOptions, create
from speculators.testing import HashTarget

VOCAB = 64
TARGET = HashTarget(VOCAB)
FREE = StepCosts({1: ((1, 1000), (1.0, 1.0))})


def line(per_row):
    """Steps of a second, and so much more for every row; what drafting itself takes does not count beside that."""
    return StepCosts({1: ((1, 1001), (1.0, 1.0 + 1000 * per_row))})


class Source:
    """Drafts chains of ``claim`` per token that are right with probability ``accuracy`` per token; keeps a log."""

    needs = Needs()

    def __init__(self, claim=0.9, accuracy=1.0, depth=8, name="source", fails_in=()):
        self.name = name
        self.claim = claim
        self.accuracy = accuracy
        self.depth = depth
        self.fails_in = fails_in
        self.live = set()
        self.asked = []  # request ids
        self._chance = random.Random(7)

    def _attempt(self, what):
        if what in self.fails_in:
            raise RuntimeError(f"{what} is broken")

    def begin(self, request):
        self.live.add(request.request_id)
        self._attempt("begin")

    def propose(self, request, budget):
        self.asked.append(request.request_id)
        self._attempt("propose")
        right = TARGET.generate(request.context.view.tolist(), min(self.depth, budget))
        tokens = [token if self._chance.random() < self.accuracy else (token + 1) % VOCAB for token in right]
        scores = None if self.claim is None else [self.claim] * len(tokens)
        return [Branch(tokens, self.name, scores=scores)]

    def observe(self, request, outcome):
        self._attempt("observe")

    def end(self, request):
        self.live.discard(request.request_id)
        self._attempt("end")


class Fixed(Source):
    """Drafts the branches it was given."""

    def __init__(self, branches, name="fixed"):
        super().__init__(name=name)
        self.branches = branches

    def propose(self, request, budget):
        self.asked.append(request.request_id)
        return list(self.branches)


class Decoding:
    """Requests that decode side by side, in the steps of one batch."""

    def __init__(self, speculator, n=1, first=0, target=TARGET):
        self.speculator = speculator
        self.target = target
        self.requests = [make_request(first + i, target.vocab_size) for i in range(n)]
        self.rows = []  # of every step
        for request in self.requests:
            speculator.begin(request)

    @property
    def n_tokens(self):
        return sum(len(request.context) - request.n_prompt for request in self.requests)

    def step(self, budget=32):
        """Nodes per request."""
        drafts = self.speculator.propose_batch(self.requests, [budget] * len(self.requests))
        sizes = []
        for request, branches in zip(self.requests, drafts, strict=True):
            tree = compose(branches, budget)
            outcome = self.target.score(request.context.view.tolist(), tree)
            request.context.extend(outcome.tokens)
            self.speculator.observe(request, outcome)
            sizes.append(len(tree))
        self.rows.append(len(sizes) + sum(sizes))
        return sizes

    def steps(self, n, budget=32):
        """Nodes of all requests together, step by step."""
        return [sum(self.step(budget)) for _ in range(n)]

    def end(self):
        for request in self.requests:
            self.speculator.end(request)


def make_request(number=0, vocab_size=VOCAB):
    prompt = [number % vocab_size, 3 * number % vocab_size, 7]
    return RequestView.of(number, Request(prompt, SamplingParams()), vocab_size)


def first_draft(costs, source, budget=32):
    return Decoding(Auto([source], costs)).step(budget)[0]


# -- sharing nodes out -----------------------------------------------------------------------------------------------


@st.composite
def step_costs(draw):
    made = {}
    for batch in draw(st.sets(st.integers(1, 6), min_size=1, max_size=3)):
        rows = sorted(draw(st.sets(st.integers(batch, 20), min_size=1, max_size=5)))
        steps = draw(st.lists(st.floats(0.0, 2e-3), min_size=len(rows), max_size=len(rows)))
        made[batch] = (tuple(rows), tuple((1e-3 + np.cumsum(steps)).tolist()))
    return StepCosts(made)


probabilities = st.lists(st.floats(1e-3, 1.0), max_size=4).map(lambda values: sorted(values, reverse=True))


@settings(max_examples=100)
@given(st.lists(probabilities, max_size=3), st.integers(0, 4), step_costs(), st.sampled_from([0.0, 0.01, 0.2]))
def test_no_other_way_to_share_out_gives_more_tokens_per_second(reaches, n_others, costs, margin):
    batch = max(len(reaches) + n_others, 1)
    auto = Auto([Source()], costs, AutoConfig(margin=margin))

    def rate(counts):
        seconds = float(costs.seconds(batch, [batch + sum(counts)])[0])
        seconds += FIRST_DRAFTING * len(reaches) if sum(counts) else 0.0
        return (batch + sum(sum(reach[:n]) for reach, n in zip(reaches, counts, strict=True))) / seconds

    counts = auto.share_out(reaches, batch)
    assert len(counts) == len(reaches)
    assert all(0 <= n <= len(reach) for n, reach in zip(counts, reaches, strict=True))
    best = max(map(rate, itertools.product(*(range(len(reach) + 1) for reach in reaches))))
    nothing = rate([0] * len(reaches))
    if sum(counts):
        assert math.isclose(rate(counts), best, rel_tol=1e-9)
        assert best >= nothing * (1.0 + margin) * (1.0 - 1e-9)
    else:
        assert best <= nothing * (1.0 + margin) * (1.0 + 1e-9)


@given(st.lists(probabilities, max_size=3), step_costs())
def test_the_most_probable_nodes_of_all_requests_come_first(reaches, costs):
    counts = Auto([Source()], costs).share_out(reaches, max(len(reaches), 1))
    taken = [p for reach, n in zip(reaches, counts, strict=True) for p in reach[:n]]
    left = [p for reach, n in zip(reaches, counts, strict=True) for p in reach[n:]]
    assert min(taken, default=1.0) >= max(left, default=0.0)


@given(st.lists(probabilities, max_size=3))
def test_free_nodes_are_all_taken_and_dear_ones_never(reaches):
    batch = max(len(reaches), 1)
    assert Auto([Source()], line(1.01)).share_out(reaches, 1) == [0] * len(reaches)
    assert Auto([Source()], None).share_out(reaches, batch) == [len(reach) for reach in reaches]
    pays = sum(map(sum, reaches)) > 0.01 * batch + 1e-2  # the margin, and drafting
    if pays:
        assert Auto([Source()], FREE).share_out(reaches, batch) == [len(reach) for reach in reaches]


def test_the_margin_is_what_a_draft_must_promise_more():
    costs = line(0.1)  # one node of 0.2: 1.2 tokens in 1.1002 s, that is 9.07 per cent more
    for margin, count in ((0.0, 1), (0.09, 1), (0.092, 0), (0.5, 0)):
        assert Auto([Source()], costs, AutoConfig(margin=margin)).share_out([[0.2]], 1) == [count]


def test_requests_without_a_draft_make_a_step_worth_less_to_the_others():
    costs = StepCosts({1: ((1, 9), (1.0, 1.8)), 8: ((8, 16), (1.0, 1.8))})  # 0.1 s a node, on top of 1 s
    assert Auto([Source()], costs).share_out([[0.3, 0.2]], 1) == [2]
    assert Auto([Source()], costs).share_out([[0.3, 0.2]], 8) == [0]  # 8.3 tokens in 1.1 s, instead of 8 in 1 s


# -- drafts ----------------------------------------------------------------------------------------------------------


@st.composite
def proposals(draw, name):
    """A tree with estimates, or None for a source that proposes nothing."""
    paths = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=4))
    nodes = {}  # path -> index
    for path in paths:
        for end in range(1, len(path) + 1):
            nodes.setdefault(tuple(path[:end]), len(nodes))
    scores = draw(st.lists(st.floats(0.05, 1.0), min_size=len(nodes), max_size=len(nodes)))
    parents = [nodes.get(path[:-1], ROOT) for path in nodes]
    return Branch([path[-1] for path in nodes], name, parents, scores=scores) if nodes else None


def reach_by_path(branches):
    """Path -> path probability; a node of several sources has the highest estimate."""
    scores = {}
    for branch in branches:
        paths = []
        for token, parent, score in zip(branch.tokens, branch.parents, branch.scores, strict=True):
            paths.append((*(() if parent == ROOT else paths[parent]), token))
            scores[paths[-1]] = max(scores.get(paths[-1], 0.0), score)
    return {path: math.prod(scores[path[:end]] for end in range(1, len(path) + 1)) for path in scores}


def paths_of(branches):
    tree = compose(branches, 10**6)
    return [tuple(tree.tokens[i] for i in tree.path(node)) for node in range(len(tree))]


@given(proposals("a"), proposals("b"), st.integers(0, 12), st.sampled_from([None, FREE, line(0.1), line(0.4)]))
def test_a_draft_is_the_best_part_of_what_was_proposed(one, other, budget, costs):
    given_branches = [branch for branch in (one, other) if branch is not None]
    auto = Auto([Fixed([branch] if branch else []) for branch in (one, other)], costs)
    request = make_request()
    auto.begin(request)
    drafts = auto.propose(request, budget)
    taken = paths_of(drafts)
    assert sum(len(branch.tokens) for branch in drafts) == len(taken) <= budget
    reach = reach_by_path(given_branches)
    assert set(taken) <= set(reach)
    assert all(len(path) == 1 or path[:-1] in taken[:i] for i, path in enumerate(taken))
    best = sorted(reach.values(), reverse=True)[:budget]
    assert sorted((reach[path] for path in taken), reverse=True) == pytest.approx(best[: len(taken)])
    assert len(taken) == Auto([Source()], costs).share_out([best], 1)[0]
    for branch in drafts:
        assert [len(values) for values in (branch.parents, branch.scores)] == [len(branch.tokens)] * 2
        if branch.proposers is not None:
            assert [set(names) for names in branch.proposers] == [
                {b.source for b in given_branches if path in reach_by_path([b])} for path in taken
            ]


def test_budgets_of_nothing_draft_nothing_and_ask_no_part():
    source = Source()
    auto = Auto([source], FREE)
    decoding = Decoding(auto, 2)
    assert decoding.step(budget=0) == [0, 0]
    assert source.asked == []
    assert auto.propose_batch((), ()) == []
    drafts = auto.propose_batch(decoding.requests, [0, 3])
    assert [sum(len(branch.tokens) for branch in draft) for draft in drafts] == [0, 3]
    assert decoding.step() == [8, 8]  # no pause came of it


def test_a_source_without_estimates_is_believed_a_little():
    unsaid = Source(claim=None)
    assert 0 < first_draft(line(0.05), unsaid) < first_draft(line(0.05), Source(claim=0.9))
    assert first_draft(line(0.5), unsaid) == 0
    assert first_draft(None, unsaid) == 8


@pytest.mark.parametrize("costs", [None, FREE, line(0.5)], ids=["no costs", "free", "dear"])
def test_drawn_branches_and_probes_pass_untouched(costs):
    q = np.full((2, VOCAB), 1 / VOCAB, np.float32)
    for special in (Branch([1, 2], "drawn", q=q), Branch([1, 2], "probing", probe=True)):
        rest = Branch([3, 4], "rest", scores=[0.01, 0.01])
        auto = Auto([Fixed([special]), Fixed([rest])], costs)
        request = make_request()
        auto.begin(request)
        for _ in range(5):
            drafts = auto.propose(request, 32)
            assert [draft is branch for draft, branch in zip(drafts, (special, rest), strict=True)] == [True, True]
            outcome = TARGET.score(request.context.view.tolist(), compose(drafts, 32))
            request.context.extend(outcome.tokens)
            auto.observe(request, outcome)


def test_drawn_branches_of_one_request_leave_the_others_to_their_estimates():
    class Mixed(Source):
        def propose(self, request, budget):
            if request.request_id % 2:
                return super().propose(request, budget)
            return [Branch([1, 2], self.name, q=np.full((2, VOCAB), 1 / VOCAB, np.float32))]

    for claim, sizes in ((0.9, [2, 5, 2, 5]), (0.05, [2, 0, 2, 0])):
        decoding = Decoding(Auto([Mixed(claim, depth=5)], line(0.1)), 4)
        assert decoding.step() == sizes


def test_every_source_has_its_nodes_counted_as_its_own():
    auto = Auto([Source(name="a", depth=3), Source(name="b", accuracy=0.0, depth=2)], FREE)
    request = make_request()
    auto.begin(request)
    (branch,) = auto.propose(request, 32)
    assert sorted(branch.proposers) == [("a",)] * 3 + [("b",)] * 2
    tree = compose([branch], 32)
    assert {tree.source_names[source] for source in tree.sources} == {"a", "b"}


# -- over many steps -------------------------------------------------------------------------------------------------


def asked_steps(costs, source, n_steps, config=None):
    """Steps in which the source was asked for a draft, and nodes per step."""
    decoding = Decoding(Auto([source], costs, config))
    steps, sizes = [], []
    for step in range(n_steps):
        before = len(source.asked)
        sizes += decoding.step()
        if len(source.asked) > before:
            steps.append(step)
    return steps, sizes


@pytest.mark.parametrize("longest", [1, 2, 8, 32])
def test_where_nothing_pays_pauses_double_up_to_the_longest(longest):
    steps, sizes = asked_steps(line(0.5), Source(claim=0.3, accuracy=0.0), 200, AutoConfig(longest_pause=longest))
    assert not any(sizes)
    gaps = [later - earlier - 1 for earlier, later in itertools.pairwise(steps)]
    assert gaps == [int(min(2.0 ** (i - 2), longest)) for i in range(len(gaps))]
    assert len(gaps) > 5
    assert steps[0] == 0


def test_a_source_that_has_nothing_is_left_alone_too():
    steps, sizes = asked_steps(FREE, Fixed([]), 200)
    assert not any(sizes)
    assert len(steps) < 50


@pytest.mark.parametrize("per_row", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("claim", [0.7, 0.95])
def test_a_source_that_is_always_wrong_is_given_up_and_tried_again_now_and_then(per_row, claim):
    steps, sizes = asked_steps(line(per_row), Source(claim, accuracy=0.0), 1000)
    assert sizes[0] > 1
    assert 0 in sizes[:40]
    late = sizes[200:]
    assert sum(late) * per_row < 0.06 * len(late)  # seconds lost to its drafts, of steps that take one
    assert any(late)
    assert any(step > 900 for step in steps)


def test_a_source_that_is_always_right_drafts_deep():
    decoding = Decoding(Auto([Source(claim=0.9)], line(0.2)))
    sizes = decoding.steps(60)
    assert min(sizes) >= 5
    assert decoding.n_tokens == 60 + sum(sizes)


@pytest.mark.parametrize("per_row", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("claim", [0.7, 0.9])
def test_a_bad_phase_is_over_when_it_is_over(per_row, claim):
    source = Source(claim=claim)
    decoding = Decoding(Auto([source], line(per_row)))
    before = decoding.steps(30)
    source.accuracy = 0.0
    during = decoding.steps(100)
    source.accuracy = 1.0
    after = decoding.steps(200)
    assert before[-1] > 0
    assert sum(during[-50:]) < sum(before)
    assert sum(after[:100]) > 0
    assert min(after[-30:]) >= before[-1] - 1


@pytest.mark.parametrize("per_row", [0.2, 0.6])
def test_what_one_request_could_not_use_is_not_kept_from_all_later_ones(per_row):
    bad, good = Source(claim=0.9, accuracy=0.0), Source(claim=0.9)
    auto = Auto([bad], line(per_row))
    for number in range(5):
        decoding = Decoding(auto, first=number)
        decoding.steps(60)
        decoding.end()
    bad.accuracy = 1.0
    later = Decoding(auto, first=9).steps(150)
    assert min(later[-30:]) >= Decoding(Auto([good], line(per_row)), first=9).steps(150)[-1] - 1


def test_claims_that_are_too_high_are_shrunk_to_what_comes_true():
    honest = Decoding(Auto([Source(claim=0.3, accuracy=0.3)], line(0.05)))
    boasting = Decoding(Auto([Source(claim=0.9, accuracy=0.3)], line(0.05)))
    first = boasting.steps(5)
    honest.steps(100)
    boasting.steps(95)
    assert min(first) >= 4
    assert np.mean(boasting.steps(50)) < 1.5 * np.mean(honest.steps(50))


def test_claims_that_are_too_low_are_raised_but_not_above_twice():
    modest = Decoding(Auto([Source(claim=0.2)], line(0.05)))
    sizes = modest.steps(150)
    assert sizes[0] == first_draft(line(0.05), Source(claim=0.2)) == 1
    assert sizes[-1] == first_draft(line(0.05), Source(claim=0.4)) == 2


def test_a_tree_that_was_not_run_proves_nothing():
    auto = Auto([Source(claim=0.9, accuracy=0.0)], line(0.3))
    request = make_request()
    auto.begin(request)
    sizes = []
    for _ in range(50):
        (branch,) = auto.propose(request, 32)
        sizes.append(len(branch.tokens))
        outcome = TARGET.score(request.context.view.tolist(), EMPTY_TREE)  # short of memory, its draft went first
        request.context.extend(outcome.tokens)
        auto.observe(request, outcome)
    assert len(set(sizes)) == 1


def test_unpredictable_text_costs_nearly_nothing():
    costs = line(0.08)
    decoding = Decoding(create("auto", SpeculatorOptions(step_costs=costs)), target=HashTarget(4096, 4096))
    decoding.steps(300)
    seconds = sum(float(costs.seconds(1, [rows])[0]) for rows in decoding.rows)
    assert decoding.n_tokens / seconds > 0.97


@pytest.mark.parametrize("per_row", [0.0, 0.05, 0.2])
def test_text_that_repeats_itself_becomes_faster_the_cheaper_the_nodes_are(per_row):
    costs = line(per_row)
    decoding = Decoding(create("auto", SpeculatorOptions(step_costs=costs)), target=HashTarget(VOCAB, 1))
    decoding.steps(200)
    seconds = sum(float(costs.seconds(1, [rows])[0]) for rows in decoding.rows)
    assert decoding.n_tokens / seconds > {0.0: 10, 0.05: 5, 0.2: 2.5}[per_row]


# -- side by side ----------------------------------------------------------------------------------------------------


class ByRequest(Source):
    """Even requests are predictable and it knows it; odd ones are not."""

    def propose(self, request, budget):
        is_even = request.request_id % 2 == 0
        self.claim, self.accuracy = (0.9, 0.95) if is_even else (0.25, 0.1)
        return super().propose(request, budget)


def test_nodes_go_to_the_request_that_can_use_them():
    source = ByRequest()
    decoding = Decoding(Auto([source], line(0.15)), 2)
    sizes = np.array([decoding.step() for _ in range(100)])
    assert sizes[:, 0].mean() > 6
    assert sizes[:, 1].mean() < 0.5
    assert source.asked.count(0) == 100
    assert source.asked.count(1) < 50


def test_a_step_is_filled_once_by_however_many_requests():
    """Sixteen rows are free, more are not: alone a request may have them all, in company its share."""
    full = (16, 17, 200), (1.0, 2.0, 185.0)
    costs = StepCosts({1: ((1, *full[0]), (1.0, *full[1])), 12: ((12, *full[0]), (1.0, *full[1]))})
    for n in (1, 2, 4, 8, 12):
        decoding = Decoding(Auto([Source(claim=0.9, depth=20)], costs), n)
        sizes = decoding.step()
        assert sum(sizes) == 16 - n
        assert max(sizes) - min(sizes) <= 1  # all are as predictable


def test_requests_are_calibrated_apart():
    source = Source(claim=0.9)
    auto = Auto([source], line(0.3))
    right, wrong = Decoding(auto, first=0), Decoding(auto, first=1)
    for _ in range(40):
        source.accuracy = 1.0
        (good,) = right.step()
        source.accuracy = 0.0
        (bad,) = wrong.step()
    assert good >= 4
    assert bad == 0


# -- the time drafting takes -----------------------------------------------------------------------------------------


class Slow(Source):
    """Takes its time, in the first ``n_slow`` drafts."""

    seconds = 0.01
    n_slow = 10**6

    def propose(self, request, budget):
        if len(self.asked) < self.n_slow:
            time.sleep(self.seconds)
        return super().propose(request, budget)


def test_a_source_slower_than_the_steps_it_saves_is_dropped():
    fast = StepCosts({1: ((1, 100), (0.0005, 0.0006))})
    sizes = Decoding(Auto([Slow(depth=4)], fast)).steps(60)
    assert sizes[0] == 4
    assert not any(sizes[-30:])


def test_the_first_draft_of_a_process_may_take_long():
    source = Slow(depth=4)
    source.seconds, source.n_slow = 0.2, 1
    fast = StepCosts({1: ((1, 100), (0.003, 0.0031))})
    assert Decoding(Auto([source], fast)).steps(20)[1:] == [4] * 19


# -- state and failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_in", ["begin", "propose", "observe", "end"])
def test_a_part_that_fails_hurts_no_other_and_its_state_goes_as_well(fails_in):
    broken, sound = Source(name="broken", accuracy=0.0, fails_in={fails_in}), Source(name="sound", depth=3)
    auto = Auto([broken, sound], line(0.1))
    decoding = Decoding(auto, 3)
    for _ in range(5):
        assert min(decoding.step()) >= 3
    decoding.end()
    assert broken.live == sound.live == set()
    assert auto._statistics == {}
    assert all(part._failed == set() for part in auto._parts)


def test_requests_begin_anew_after_their_end():
    source = Source(claim=0.3, accuracy=0.0)
    auto = Auto([source], line(0.5))
    first = Decoding(auto)
    first.steps(50)
    first.end()
    source.asked.clear()
    again = Decoding(auto)
    again.steps(1)
    assert source.asked == [0]  # no pause is left over
    again.end()
    again.end()  # a second time is harmless
    assert auto._statistics == {}


def test_all_parts_hear_everything_and_needs_are_merged():
    class Wanting(Source):
        needs = Needs(node_top_k=4)

    auto = Auto([Wanting(), PromptLookup()])
    assert auto.needs == Needs(node_top_k=4)
    assert isinstance(auto, BatchSpeculator)
    assert auto.name == "auto"


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"longest_pause": 0}, "longest_pause must be at least 1, got 0"),
        ({"margin": -0.1}, r"margin must lie in \[0, 1\), got -0.1"),
        ({"margin": 1.0}, "margin"),
        ({"margin": float("nan")}, "margin"),
        ({"sources": ("pld", "auto")}, "sources cannot contain auto"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=f"auto: .*{says}"):
        AutoConfig(**wrong)


def test_sources_are_the_named_ones():
    options = SpeculatorOptions(auto=AutoConfig(sources=("pld", "spectra-core")))
    auto = create("auto", options)
    assert [part.name for part in auto._parts] == ["pld", "spectra-core"]
    assert auto.needs == Needs(probe_top_k=32)
    assert [part.name for part in create("auto")._parts] == ["suffix+token-recycling"]
    with pytest.raises(UnknownMethodError, match="magic"):
        create("auto", SpeculatorOptions(auto=AutoConfig(sources=("magic",))))


def test_what_was_given_its_input_becomes_a_source():
    class Empty:
        pass

    options = SpeculatorOptions(draft_model=DraftModelConfig(path=None), retrieval=lambda: Empty())
    assert [part.name for part in create("auto", options)._parts] == ["suffix+token-recycling", "spectra-retrieval"]
    without = replace(options, auto=AutoConfig(retrieval=False))
    assert [part.name for part in create("auto", without)._parts] == ["suffix+token-recycling"]


@pytest.mark.parametrize("per_row", [None, 0.0, 0.1, 0.4])
@pytest.mark.parametrize("sources", [(), ("pld",), ("pld", "spectra-core", "lookahead")], ids=str)
def test_the_text_is_the_plain_one(decode, per_row, sources):
    costs = None if per_row is None else line(per_row)
    options = SpeculatorOptions(step_costs=costs, auto=AutoConfig(sources=sources))
    target = HashTarget(48, n_successors=2)
    tokens, n_steps = decode(create("auto", options), target, [3, 1, 4, 1, 5], 120)
    assert tokens == target.generate([3, 1, 4, 1, 5], 120)
    assert n_steps <= 119
