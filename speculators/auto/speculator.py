"""``auto``: drafts only what is expected to save time, from an account that bounds what it can lose.

Every stream has one of three arms: *off* (plain decoding), *text* (sources that read only the text) and *all* sources.
For each arm, a stream keeps the mean gain of a step: accepted tokens minus its cost in tokens. A new stream begins with
the mean of its scope. The best arm drafts, if it gains anything. The nodes of a step are shared out over all its drafts
by measured step times (``speculators.auto.sharing``). Every step that is not plain is charged to an account
(``speculators.auto.prices``), and an arm drafts only if the account can pay for the step even if no node is accepted.
The next arm is chosen after a step is sent (``settle``), while the target computes it. docs/methods/auto.md explains
all of this on one page. The account is an idea of conservative bandits (Wu et al., ICML 2016, arXiv 1602.04282).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache

from engine.protocol import Branch, Decision, Draft, Needs, Outcome, RequestView, Speculator
from engine.request import Request
from engine.step_cost import StepCosts
from speculators.auto.arms import Observation, choose, count_step, look_back
from speculators.auto.config import AutoConfig, source_names
from speculators.auto.lane import BUDGET, DraftPlan, LaneCosts
from speculators.auto.proposals import Proposal, take_nodes
from speculators.auto.streams import ALL, OFF, STEPS_FADE, TEXT, DraftRecord, ScopeState, StreamState
from speculators.method import Method
from speculators.mixing.sources import Sources
from speculators.per_request import PerRequest
from speculators.tenant_state import TenantState

PROMPT_SHARE = 0.05  # of the gain of all sources that reading a prompt back adds (measured: 0 to 0.03)
LEARN_SHARE = 0.5  # of a plain step: after so long, no further request begins in all sources before the next send

NOT_WORTH_IT = Decision("off", "unlikely", False)  # no arm is expected to save time
NOTHING = (NOT_WORTH_IT, Decision("text", "nothing", False), Decision("all", "nothing"))  # no node is worth it; by arm
DRAFTS = (NOT_WORTH_IT, Decision("text", "drafts", False), Decision("all", "drafts"))
TRIES = (NOT_WORTH_IT, Decision("text", "trial", False), Decision("all", "trial"))


class Auto(PerRequest[StreamState]):
    """Chooses arms and nodes; without ``costs`` all sources draft, and all of their nodes are taken."""

    name = "auto"

    def __init__(
        self, parts: Sequence[Speculator], costs: StepCosts | None = None, config: AutoConfig | None = None
    ) -> None:
        super().__init__()
        self._sources = Sources(parts)
        self.needs = self._sources.needs
        has_text = self._sources.text or not self._sources.answers_help
        self._arms = [arm for arm, is_one in ((TEXT, has_text), (ALL, self._sources.answers_help)) if is_one]
        self._lane = None if costs is None else LaneCosts(costs, (config or AutoConfig()).loss)
        self._plan: DraftPlan | None = None  # None: no step was measured
        self._scopes: list[TenantState[ScopeState]] = [TenantState() for _ in range(4)]  # by kind of request
        self._unsettled: list[Observation] = []
        self._learnt: list[int] = []  # places in ``_unsettled`` that the sources have observed

    # -- requests ------------------------------------------------------------------------------------------------

    def needs_of(self, request: Request) -> Needs:
        """Return what is read back for a request: its prompt only where drafts save more time than that takes."""
        lane = self._lane
        if lane is None or ALL not in self._arms or not request.max_nodes:
            return self.needs
        scope, price = self._scope(request), lane.price(1 + len(self.states))  # a burst of requests decodes together
        n_tokens, n_waiting = len(request.prompt), sum(state.n_waiting for state in self.states.values())
        if scope.gains[ALL].weight:
            n_steps = min(scope.steps.value(request.params.max_tokens, 1.0), request.params.max_tokens)
            gain = scope.gain(ALL) - max(scope.gain(TEXT), 0.0) - lane.arm_costs(price, price.batch)[ALL]
            saved = PROMPT_SHARE * gain * lane.share(price) * n_steps
            reads_prompt = lane.prices.prompt_seconds(n_tokens) < saved
        else:
            reads_prompt = not scope.n_live  # no gain was measured yet: one request at a time reads its prompt back
        is_allowed = self._plan is None or self._plan.highest == ALL
        if reads_prompt and is_allowed and lane.can_read_prompt(n_tokens, n_waiting, price):
            return self.needs
        return replace(self.needs, prompt_top_k=0, drafts_first=False)

    def _scope(self, request: Request) -> ScopeState:
        """Return the experience of similar requests: predictions and sampling change what a request gains."""
        kind = 2 * bool(request.prediction) + request.params.is_greedy
        return self._scopes[kind].of(request.scope, ScopeState)

    def new_state(self, view: RequestView) -> StreamState:
        own = self._sources.of(view.request)
        for part in (*self._sources.at_once, *own):
            part.begin(view)
        scope = self._scope(view.request)
        scope.n_live += 1
        state = StreamState(scope, own, n_looked=len(view.context), n_waiting=view.n_prompt)
        if self._lane is None:
            state.arm, state.has_begun_all = self._arms[-1], True
            self._sources.begin_all(view)
        else:
            state.choose(self._arms, self._lane.arm_costs(self._lane.price(1)))
            state.set_factors()
        return state

    def end(self, view: RequestView) -> None:
        state = self.states.pop(view.request_id, None)
        if state is not None:
            state.scope.n_live -= 1
            state.scope.steps.add(state.n_steps, STEPS_FADE)
            self._sources.end(view, state.has_begun_all, state.own)

    # -- before the next step is sent ----------------------------------------------------------------------------

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        self.observe_batch((view,), (outcome,))

    def observe_batch(self, views: Sequence[RequestView], outcomes: Sequence[Outcome]) -> None:
        """Let the sources observe the outcomes on which the next drafts depend; the others are left to ``settle``."""
        if self._unsettled:
            self.settle((), (), 0.0)
        states = [self.states[view.request_id] for view in views]
        self._unsettled = [*map(Observation, views, states, outcomes, [state.draft for state in states])]
        if self._plan is None or self._plan.highest == ALL:
            self._learnt = [i for i, state in enumerate(states) if state.arm == ALL and state.has_begun_all]
            if self._learnt:
                self._learn([self._unsettled[i] for i in self._learnt])

    def _learn(self, learning: Sequence[Observation]) -> None:
        self._sources.observe([one.view for one in learning], [one.outcome for one in learning])
        for one in learning:
            for part in one.state.own:
                part.observe(one.view, one.outcome)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        return self.propose_batch((view,), (budget,))[0]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Return the nodes that save the most time over all requests together, with the decision about each request."""
        states = [self.states[view.request_id] for view in views]
        plan = self._plan
        if self._lane is not None and (plan is None or plan.price.batch < len(views)):
            plan = self._plan = self._lane.plan(states)
        highest, rests = ALL if plan is None else plan.highest, not self._sources.always_observing
        off = self._empty(BUDGET if plan is None else plan.reason, rests)
        rest = self._empty(NOT_WORTH_IT, rests)
        drafts: list[list[Branch]] = []
        places: tuple[list[int], ...] = ([], [], [])  # by arm
        for i, state in enumerate(states):
            arm = self._allowed(state, highest)
            state.draft, state.rests = None, rests and arm == OFF
            if budgets[i] > 0:
                drafts.append(off if state.arm else rest)
                places[arm].append(i)
            else:
                drafts.append(self._empty(NOT_WORTH_IT, state.rests))  # a single token is left
        proposals: list[Proposal] = []
        for arm in self._arms:
            if places[arm]:
                record = DraftRecord(arm, 0.0)
                for i in places[arm]:
                    drafts[i] = self._empty(NOTHING[arm], drafts_next=self._uses_drafter(states[i]))
                    states[i].draft = record
                proposals += self._ask(arm, places[arm], views, states, budgets)
        if proposals:
            take_nodes(self.name, proposals, self._lane, plan, len(places[ALL]))
        for one in proposals:
            is_trial = one.state.trial > 0 and one.arm == one.state.arm
            decision = (TRIES if is_trial else DRAFTS if one.taken else NOTHING)[one.arm]
            drafts[one.place] = Draft(one.taken, decision, False, self._uses_drafter(one.state))
        return drafts

    def _empty(self, decision: Decision, rests: bool = False, drafts_next: bool = False) -> Draft:
        return _empty_draft(decision, decision.reads_back or self._sources.reads_always, rests, drafts_next)

    def _allowed(self, state: StreamState, highest: int) -> int:
        """Return the arm that drafts: the stream's own, if the account allows it and the request has begun there."""
        arm = min(state.arm, highest, ALL if state.has_begun_all else TEXT)
        return arm if arm in self._arms else OFF

    def _uses_drafter(self, state: StreamState) -> bool:
        """Return whether the target's drafter drafts after the next step: only for drafts from all sources."""
        if self._lane is None or state.arm != ALL:
            return state.arm == ALL
        return (self._plan is None or self._plan.can_pay_drafter) and state.scope.should_use_drafter

    def _ask(
        self,
        arm: int,
        places: Sequence[int],
        views: Sequence[RequestView],
        states: Sequence[StreamState],
        budgets: Sequence[int],
    ) -> list[Proposal]:
        """Return what the sources of an arm propose for some of the requests, without those that get nothing."""
        asked = [views[i] for i in places]
        n_most = [min(budgets[i], int(2.0 * states[i].recent_nodes) + 8) for i in places]
        found: dict[int, list[Branch]] = {}
        for part in self._sources.text if arm == TEXT else self._sources.all:
            for i, branches in zip(places, part.propose_batch(asked, n_most), strict=True):
                if branches:
                    found.setdefault(i, []).extend(branches)
        for i, n in zip(places, n_most, strict=True):
            for part in states[i].own:
                branches = part.propose(views[i], n)
                if branches:
                    found.setdefault(i, []).extend(branches)
        if self._lane is not None:
            self._lane.asked[arm] += sum(states[i].load for i in places) if arm == ALL else len(places)
        if arm == ALL:
            for i in places:
                states[i].load = 1.0
        return [Proposal(i, views[i], states[i], budgets[i], arm, branches) for i, branches in found.items()]

    # -- while the target computes -------------------------------------------------------------------------------

    def settle(self, views: Sequence[RequestView], outcomes: Sequence[Outcome], seconds: float) -> Collection[int]:
        """Charge the account, learn, and choose the next arms; return the requests whose rest ends."""
        learnt, self._learnt = set(self._learnt), []
        seen, self._unsettled = self._unsettled, []
        late = [one for i, one in enumerate(seen) if i not in learnt] if len(learnt) < len(seen) else []
        for view, outcome in zip(views, outcomes, strict=True):
            state = self.states[view.request_id]
            late.append(Observation(view, state, outcome, state.draft if state.rests else None))
            seen.append(late[-1])
            state.draft = None
        self._learn_late([one for one in late if one.view.request_id in self.states])
        seen = [one for one in seen if one.view.request_id in self.states]
        lane = self._lane
        if lane is None:
            return ()
        price = lane.price(len(seen))
        lane.charge([one.outcome for one in seen], price, seconds)
        for one in seen:
            count_step(one, lane, price)
        look_back(seen, self._sources.looking, lane, price)
        states = [one.state for one in seen]
        choose(states, self.states.values(), self._arms, lane)
        self._plan = lane.plan(states)
        resting = {view.request_id for view in views}  # as their owner sees it, which is late in actors
        woken = [
            one
            for one in seen
            if (one.state.rests or one.view.request_id in resting) and self._allowed(one.state, self._plan.highest)
        ]
        for one in woken:
            one.state.rests = False
        self._begin_some(seen, LEARN_SHARE * price.plain)
        return [one.view.request_id for one in woken]

    def _begin_some(self, seen: Sequence[Observation], seconds: float) -> None:
        """Begin requests in all sources, which then observe the answers after their prompts, for about ``seconds``."""
        until = time.perf_counter() + seconds
        for one in seen:
            state = one.state
            if state.arm == ALL and not state.has_begun_all and time.perf_counter() < until:
                state.has_begun_all = True
                self._sources.begin_all(one.view)
            while state.has_begun_all and state.prompt_outcomes and time.perf_counter() < until:
                self._sources.observe_prompt(one.view, state.prompt_outcomes.pop(0))

    def _learn_late(self, late: Sequence[Observation]) -> None:
        """Let sources observe the outcomes on which no draft depended."""
        answered = [one for one in late if one.state.has_begun_all and len(one.outcome.top_ids)]
        if answered:
            self._learn(answered)
        for one in late:
            if one.outcome.prompt_top_ids is not None:
                one.state.prompt_outcomes.append(one.outcome)
        for part in self._sources.always_observing:
            known = set(map(id, answered))
            others = [one for one in late if id(one) not in known]
            part.observe_batch([one.view for one in others], [one.outcome for one in others])


@cache
def _empty_draft(decision: Decision, reads_back: bool, rests: bool, drafts_next: bool) -> Draft:
    """Return a draft without nodes; one object for all requests with the same decision."""
    return Draft((), decision._replace(reads_back=reads_back), rests, drafts_next)


AUTO = Method(
    name="auto",
    factory=lambda settings, context: Auto(
        context.parts(source_names(settings, context.options)), context.options.step_costs, settings
    ),
    description="chooses among the sources that have their input, and drafts only what saves time",
    settings=AutoConfig,
)
