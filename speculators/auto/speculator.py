"""``auto``: drafts only what is expected to save time, from an account that bounds what it can lose.

Every stream has one of three arms: *off* (plain decoding), *text* (sources that read only the text) and *all* sources.
For each arm a stream knows how many tokens a step gained net of its cost, with its scope as the prior. The best arm
drafts, if it gains anything. The nodes of a step are shared out over all its drafts by measured step times
(``speculators.auto.sharing``). Every step that is not plain is charged to an account (``speculators.auto.prices``), and
nothing drafts whose worst outcome the account does not hold. The next arm is chosen after a step is sent (``settle``),
while the target computes it. docs/methods/auto.md explains all of this on one page. The account is an idea of
conservative bandits (Wu et al., ICML 2016, arXiv 1602.04282).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from engine.errors import ConfigError
from engine.protocol import Branch, Decision, Draft, Needs, Outcome, RequestView, Speculator, StepTime
from engine.request import Request
from engine.step_cost import StepCosts
from speculators.auto.prices import OUTLIER, Account, Price, Prices
from speculators.auto.sharing import share_out
from speculators.auto.streams import (
    ALL,
    OFF,
    PRIOR_STEPS,
    STEPS_FADE,
    TEXT,
    DraftRecord,
    ScopeState,
    StreamState,
)
from speculators.method import Method, SpeculatorOptions
from speculators.mixing.merged import first_nodes, ranked
from speculators.mixing.sources import Sources
from speculators.per_request import PerRequest
from speculators.settings import Settings, setting
from speculators.tenant_state import TenantState

CAPACITY = 4.0  # plain steps that drafting may lose at once: an unlucky run of drafts that pay ends within that
TRIAL_CAPACITY = 2.0  # plain steps that trials may lose at once: enough for the first request of a server
TRIAL = 8  # steps of a trial: sources that learn from answers draft well after some steps
LOOK = 8  # tokens between two looks back: as many as a draft has
FIRST_HOST = (0.0, 5e-6, 5e-5)  # seconds of host work per stream and step by arm, before any was measured
HOST_RATE = 0.1  # weight of the newest step in measured host work
HOST_WEIGHT = 1.5  # of host work when arms are compared: what it causes after the send is not measured, and not free
HOST_OUTLIER = 4.0  # host work counts as at most so many times the usual, or a plain step: a process may have paused
LANE_RATE = 1 / 32  # weight of the newest step in the accepted tokens of all streams
READ_GAIN = 0.01  # share of the accepted tokens of a step that reading back one more answer adds to later drafts
PROBE_GAIN = 0.35  # tokens a step that probes are expected to gain, before the first steps of a request

NOT_WORTH_IT = Decision("off", "unlikely", False)  # no arm is expected to save time
BUDGET = Decision("off", "budget", False)  # the account does not hold the worst outcome of a draft
PLAIN_DUE = Decision("off", "price", False)  # a plain step measures the price of plain steps
NOTHING = (NOT_WORTH_IT, Decision("text", "nothing", False), Decision("all", "nothing"))  # no node is worth it; by arm
DRAFTS = (NOT_WORTH_IT, Decision("text", "drafts", False), Decision("all", "drafts"))
TRIES = (NOT_WORTH_IT, Decision("text", "trial", False), Decision("all", "trial"))


@dataclass(frozen=True, slots=True)
class AutoConfig(Settings):
    """Settings of ``auto``."""

    sources: tuple[str, ...] = setting((), "methods to choose from; by default the usual ones that have what they need")
    retrieval: bool = setting(True, "whether spectra-retrieval is a source by default, if there are texts to look up")
    loss: float = setting(0.01, "share of the time that drafting may lose to plain decoding", above=0, at_most=1)

    def check(self) -> None:
        if "auto" in self.sources:
            raise ConfigError(f"sources is {self.sources!r}; it must not contain 'auto'")


@dataclass(slots=True)
class Proposal:
    """What the sources propose for one request, and the nodes that are taken."""

    place: int  # among the requests that are asked
    view: RequestView
    state: StreamState
    budget: int  # nodes
    arm: int
    branches: list[Branch] = field(default_factory=list)
    taken: list[Branch] = field(default_factory=list)
    n_nodes: int = 0  # of ``taken``


class Plan(NamedTuple):
    """What the next drafts may cost."""

    price: Price
    highest: int  # arm whose worst outcome the account holds
    reason: Decision  # why no higher one is allowed
    room: float  # seconds by which the step may be longer than a plain one
    token: float  # seconds that one more token is worth: in which the streams of a step make one now


class Observation(NamedTuple):
    """The answer to the last draft of a request."""

    view: RequestView
    state: StreamState
    outcome: Outcome
    draft: DraftRecord | None  # None: no source was asked


class Auto(PerRequest[StreamState]):
    """Chooses arms and nodes; without ``costs`` all sources draft, and all of their nodes are taken."""

    name = "auto"

    def __init__(
        self, parts: Sequence[Speculator], costs: StepCosts | None = None, config: AutoConfig | None = None
    ) -> None:
        super().__init__()
        self._sources = Sources(parts)
        self.needs = self._sources.needs
        self._arms = [arm for arm, is_one in ((TEXT, self._sources.text), (ALL, self._sources.answers_help)) if is_one]
        self._prices = None if costs is None else Prices(costs)
        loss = (config or AutoConfig()).loss
        self._account, self._trials = Account(loss, CAPACITY), Account(loss / 2, TRIAL_CAPACITY)
        self._scopes: TenantState[ScopeState] = TenantState()
        self._host = [*FIRST_HOST]  # seconds per stream and step by arm, those of ``all`` and ``text`` above ``off``
        self._n_asked = [0, 0, 0]  # streams of the last draft, by arm
        self._accepted = 0.0  # tokens per stream and step, lately
        self._slowness = 1.0  # seconds of a step over those of a plain one, lately
        self._step = StepTime(0.0, 1, 1, 0.0)  # the last one
        self._plan: Plan | None = None  # None: no step was measured
        self._n_steps = 0
        self._unsettled: list[tuple[RequestView, StreamState, Outcome, DraftRecord | None]] = []
        self._learnt: list[int] = []  # places in ``_unsettled`` that the sources have observed

    # -- requests ------------------------------------------------------------------------------------------------

    def needs_of(self, request: Request) -> Needs:
        """Return what is read back for a request: its prompt only where drafts save more time than that takes."""
        price = self._price(1)
        if price is None or self._prices is None or ALL not in self._arms:
            return self.needs
        scope, saved = self._scope(request), self._room(price)
        cost = self._prices.prompt_seconds(len(request.prompt))
        if scope.gains[ALL].weight:
            n_steps = min(scope.steps.value(request.params.max_tokens, 1.0), request.params.max_tokens)
            saved = min(saved, (scope.gain(ALL) * self._share(price) - self._host[ALL]) * n_steps)
        if cost > saved:
            return replace(self.needs, prompt_top_k=0, drafts_first=False)
        if self._n_steps:  # a pool that only answers this question sees no time pass
            self._account.add(0.0, -price.batch * cost, price.batch * price.plain)
        return self.needs

    def _scope(self, request: Request) -> ScopeState:
        """Return the experience of similar requests; a prediction changes what a request gains."""
        return self._scopes.of(f"{request.scope} predicted" if request.prediction else request.scope, ScopeState)

    def new_state(self, view: RequestView) -> StreamState:
        own = self._sources.of(view.request)
        for part in (*self._sources.at_once, *own):
            part.begin(view)
        state = StreamState(self._scope(view.request), own, n_looked=len(view.context))
        self._choose([state], self._price(1))
        if state.arm == ALL:
            self._begin_all(view, state)
        return state

    def end(self, view: RequestView) -> None:
        state = self.states.pop(view.request_id, None)
        if state is not None:
            state.scope.steps.add(state.n_steps, STEPS_FADE)
            self._sources.end(view, state.has_begun_all, state.own)

    def _begin_all(self, view: RequestView, state: StreamState) -> None:
        if not state.has_begun_all:
            state.has_begun_all = True
            self._sources.begin_all(view)

    # -- before the next step is sent ----------------------------------------------------------------------------

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        self.observe_batch((view,), (outcome,))

    def observe_batch(self, views: Sequence[RequestView], outcomes: Sequence[Outcome]) -> None:
        """Let the sources observe the outcomes on which the next drafts depend; the others are left to ``settle``."""
        if self._unsettled:
            self.settle((), (), 0.0)
        states = [self.states[view.request_id] for view in views]
        self._unsettled = [*zip(views, states, outcomes, [state.draft for state in states], strict=True)]
        learning = [i for i, state in enumerate(states) if state.arm == ALL or outcomes[i].prompt_top_ids is not None]
        if learning:
            for i in learning:
                self._begin_all(views[i], states[i])
            self._learn([Observation(*self._unsettled[i]) for i in learning])
            self._learnt = learning

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
        if plan is None or plan.price.batch < len(views):
            plan = self._plan = self._make_plan(states)
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
                nothing, record = self._empty(NOTHING[arm]), DraftRecord(arm, 0.0)
                for i in places[arm]:
                    drafts[i], states[i].draft = nothing, record
                proposals += self._ask(arm, places[arm], views, states, budgets)
        if proposals:
            self._take(proposals, plan)
        for one in proposals:
            decision = (TRIES if one.state.trial else DRAFTS if one.taken else NOTHING)[one.arm]
            drafts[one.place] = Draft(one.taken, decision, False, one.arm == ALL)
        return drafts

    def _empty(self, decision: Decision, rests: bool = False) -> Draft:
        return _empty_draft(decision, decision.reads_back or self._sources.reads_always, rests)

    def _allowed(self, state: StreamState, highest: int) -> int:
        arm = min(state.arm, highest)
        return arm if arm in self._arms else OFF

    def _price(self, batch: int, n_nodes: int = 256) -> Price | None:
        """Return the price of the next step, with ``batch`` drafts or more; None: no step was measured."""
        if self._prices is None:
            return None
        return self._prices.of(max(batch, self._step.n_sequences), self._step.context, n_nodes)

    def _make_plan(self, states: Sequence[StreamState]) -> Plan | None:
        """Return the plan for the next drafts, of about these requests; None: no step was measured."""
        price, arms = self._price(len(states)), [state.arm for state in states]
        if price is None or self._prices is None:
            return None
        room, n_text, n_all = self._room(price), arms.count(TEXT), arms.count(ALL)
        highest, reason = ALL, BUDGET
        if self._prices.is_plain_due(price.batch, self._step.context):
            highest, reason = OFF, PLAIN_DUE
        elif price.seconds(0, n_all) - price.plain + n_text * self._host[TEXT] + n_all * self._host[ALL] > room:
            highest = TEXT if (n_text + n_all) * self._host[TEXT] <= room else OFF
        return Plan(price, highest, reason, room, self._share(price) * self._slowness / (1.0 + self._accepted))

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
        if arm == ALL:
            for i in places:
                self._begin_all(views[i], states[i])
        found: dict[int, list[Branch]] = {}
        for part in self._sources.text if arm == TEXT else self._sources.all:
            for i, branches in zip(places, part.propose_batch(asked, n_most), strict=True):
                if branches:
                    found.setdefault(i, []).extend(branches)
        for i, n in zip(places, n_most, strict=True):
            for part in states[i].own:
                found.setdefault(i, []).extend(part.propose(views[i], n))
        self._n_asked[arm] += len(places)
        return [Proposal(i, views[i], states[i], budgets[i], arm, branches) for i, branches in found.items()]

    def _take(self, proposals: Sequence[Proposal], plan: Plan | None) -> None:
        """Take the nodes that are worth it over all proposals."""
        pairs = [(one, branch) for one in proposals for branch in ranked(self.name, one.branches, one.budget)]
        counts = [len(branch.tokens) for _, branch in pairs]
        price = None
        if plan is not None:
            price = self._price(
                plan.price.batch, sum(len(branch.tokens) for one in proposals for branch in one.branches)
            )
        if plan is not None and price is not None and pairs:
            requests = [(branch, one.state.factors, one.arm == ALL) for one, branch in pairs]
            limit = price.plain + plan.room - self._host_seconds()
            read = READ_GAIN * self._accepted
            counts = share_out(requests, self._n_asked[ALL], price, plan.token, read, limit)
        for (one, branch), count in zip(pairs, counts, strict=True):
            if count:
                one.taken.append(first_nodes(branch, count))
                one.n_nodes += count
        n_taken = sum(counts)
        for one in proposals:
            n, recent = one.n_nodes, one.state.recent_nodes
            one.state.recent_nodes = float(n) if n > recent else recent + 0.25 * (n - recent)
            if len(one.branches) > 1 or one.branches[0].probe:
                n_taken += self._take_probes(one, price, plan, n_taken)
        if price is not None:
            self._record(proposals, price)

    def _take_probes(self, proposal: Proposal, price: Price | None, plan: Plan | None, n_taken: int) -> int:
        """Take the first probes, as long as they cost less than all sources gain; return how many nodes they have.

        A probe claims nothing: it fills dictionaries from which later drafts come.
        """
        room, n = proposal.budget - proposal.n_nodes, 0
        gain = proposal.state.gains[ALL].value(PROBE_GAIN, PRIOR_STEPS)
        for probe in filter(_is_probe, proposal.branches):
            more = n + len(probe.tokens)
            if more > room or (price and plan and price.between(n_taken, n_taken + more) > gain * plan.token):
                break
            proposal.taken.append(probe)
            n = more
        proposal.n_nodes += n
        return n

    def _record(self, proposals: Sequence[Proposal], price: Price) -> None:
        """Record by how much the nodes and read-backs of each draft delay the step."""
        rows = [one.n_nodes + (1 + one.n_nodes if one.arm == ALL else 0) for one in proposals]
        n_nodes = sum(one.n_nodes for one in proposals)
        added = price.seconds(n_nodes, sum(rows) - n_nodes) - price.plain
        for one, n in zip(proposals, rows, strict=True):
            one.state.draft = DraftRecord(one.arm, added * n / max(sum(rows), 1))

    def _host_seconds(self) -> float:
        """Return how long the host usually works for the streams that were asked."""
        return self._host[TEXT] * self._n_asked[TEXT] + self._host[ALL] * self._n_asked[ALL]

    def _share(self, price: Price) -> float:
        """Return the seconds per token of plain decoding: a stream's part of a step, and its host work."""
        return price.plain / price.batch + self._host[OFF]

    def _room(self, price: Price) -> float:
        """Return by how many seconds the account allows the next step to be longer than a plain one."""
        return self._account.room(price.batch * price.plain) / price.batch

    # -- while the target computes -------------------------------------------------------------------------------

    def settle(self, views: Sequence[RequestView], outcomes: Sequence[Outcome], seconds: float) -> Collection[int]:
        """Charge the account, learn, and choose the next arms; return the requests whose rest ends."""
        learnt, self._learnt = set(self._learnt), []
        seen, self._unsettled = [Observation(*one) for one in self._unsettled], []
        late = [one for i, one in enumerate(seen) if i not in learnt] if len(learnt) < len(seen) else []
        for view, outcome in zip(views, outcomes, strict=True):
            state = self.states[view.request_id]
            late.append(Observation(view, state, outcome, state.draft if state.rests else None))
            seen.append(late[-1])
            state.draft = None
        self._learn_late(late)
        seen = [one for one in seen if one.view.request_id in self.states]
        price = self._price(len(seen))
        if price is None:
            return ()
        self._charge(seen, price, seconds)
        for one in seen:
            self._count(one, price)
        self._look_back(seen, price)
        states = [one.state for one in seen]
        self._choose(states, price)
        self._plan = self._make_plan(states)
        highest = ALL if self._plan is None else self._plan.highest
        woken = [one for one in seen if one.state.rests and self._allowed(one.state, highest)]
        for one in woken:
            one.state.rests = False
        for one in seen:
            if one.state.arm == ALL:  # here, because it may take milliseconds
                self._begin_all(one.view, one.state)
        return [one.view.request_id for one in woken]

    def _learn_late(self, late: Sequence[Observation]) -> None:
        """Let sources observe the outcomes on which no draft depended."""
        answered = [one for one in late if one.state.has_begun_all and len(one.outcome.top_ids)]
        if answered:
            self._learn(answered)
        for part in self._sources.always_observing:
            others = [one for one in late if one not in answered]
            part.observe_batch([one.view for one in others], [one.outcome for one in others])

    def _charge(self, seen: Sequence[Observation], price: Price, seconds: float) -> None:
        """Charge the account with the step that was answered, and with the host work before the one that runs now."""
        assert self._prices is not None
        usual, spent = self._host_seconds(), max(seconds - self._host[OFF] * price.batch, 0.0)
        if not usual:
            self._host[OFF] += HOST_RATE * (seconds / price.batch - self._host[OFF])
        else:
            seconds = min(spent, max(HOST_OUTLIER * usual, price.plain))
            for arm in (TEXT, ALL):
                if self._n_asked[arm]:  # in a step with both, both change by the same factor
                    self._host[arm] *= 1.0 + HOST_RATE * (max(seconds / usual, 1.0 / HOST_OUTLIER) - 1.0)
            self._account.add(0.0, -price.batch * seconds, price.batch * price.plain)
        self._n_asked = [0, 0, 0]
        step = next((one.outcome.step for one in seen if one.outcome.step is not None), self._step)
        if step is self._step:
            return
        self._step, self._n_steps = step, self._n_steps + 1
        mine = [one.outcome for one in seen if one.outcome.step is step]
        n_nodes, n_read = sum(len(one.tree) for one in mine), sum(len(one.top_ids) for one in mine)
        expected = self._prices.observe(step)
        known = expected.seconds(step.n_rows - step.n_sequences, step.n_read)
        others = known - expected.seconds(n_nodes, n_read)  # what the drafts of other methods add is not ours
        idle = self._host[OFF] * step.n_sequences
        passed = step.n_sequences * (min(step.seconds, OUTLIER * known) - others + step.draft_seconds + idle)
        n_tokens = sum(len(one.tokens) for one in mine) + step.n_sequences - len(mine)
        self._accepted += LANE_RATE * (n_tokens / step.n_sequences - 1.0 - self._accepted)
        plain = self._prices.of(step.n_sequences, step.context, 0).plain + idle
        self._slowness += LANE_RATE * (
            (passed / step.n_sequences + (seconds if usual else 0.0)) / plain - self._slowness
        )
        gained = n_tokens * plain - passed if n_nodes or n_read else 0.0
        self._account.add(passed, gained, step.n_sequences * plain)
        self._trials.add(passed, 0.0, step.n_sequences * plain)

    def _count(self, one: Observation, price: Price) -> None:
        """Count what a step gained its request."""
        if one.outcome.n_read:
            return  # a chunk of a prompt
        state, draft = one.state, one.draft
        state.n_steps += 1
        if draft is not None:
            n_accepted = len(one.outcome.accepted)
            state.count(draft.arm, n_accepted - draft.cost / self._share(price))
            if len(one.outcome.tree):
                state.calibrate(draft.arm, one.outcome.tree, one.outcome.accepted)
            if state.trial:
                state.trial -= 1
                cost = draft.cost + self._host[draft.arm]
                self._trials.add(0.0, -price.batch * cost, price.batch * price.plain)

    def _look_back(self, seen: Sequence[Observation], price: Price) -> None:
        """Count what a draft from the text would have gained where it was not asked for one, ``LOOK`` tokens ago."""
        due: list[Observation] = []
        for one in seen:
            n = len(one.view.context)
            if one.draft is not None and one.draft.arm == TEXT:
                one.state.n_looked = n
            elif n - one.state.n_looked >= LOOK:
                one.state.n_looked = n
                due.append(one)
        for part in self._sources.looking if due else ():
            found = part.look_back([one.view for one in due], [LOOK] * len(due))
            node = price.between(0, LOOK) / LOOK
            for one, (n_drafted, n_right) in zip(due, found, strict=True):
                cost = node * min(n_drafted, n_right + 1) / self._share(price)
                n_steps = LOOK / (1.0 + n_right)  # that the text took at this rate
                one.state.count(TEXT, n_right - cost * n_steps, n_steps)

    def _choose(self, states: Sequence[StreamState], price: Price | None) -> None:
        """Choose the arms of the next drafts; start a trial of the arm about which nothing else tells."""
        tried = self._arms[-1]
        if price is None:
            for state in states:
                state.arm = tried
            return
        costs = [0.0, *(HOST_WEIGHT * seconds / self._share(price) for seconds in self._host[TEXT:])]
        for state in states:
            state.choose(self._arms, costs)
            if state.arm == tried:
                state.last_trial = self._n_steps
        idle = [state for state in states if state.arm != tried]
        is_affordable = self._trials.room(price.batch * price.plain) > 0.0 and self._room(price) > self._host[tried]
        if idle and is_affordable:  # one at a time, as its cost is not known yet
            min(idle, key=lambda state: state.last_trial).try_arm(tried, TRIAL, self._n_steps)


@cache
def _empty_draft(decision: Decision, reads_back: bool, rests: bool) -> Draft:
    """Return a draft without nodes; one object for all requests with the same decision."""
    return Draft((), decision._replace(reads_back=reads_back), rests, decision.tier == "all")


def _is_probe(branch: Branch) -> bool:
    return branch.probe


def _source_names(settings: AutoConfig, options: SpeculatorOptions) -> list[str]:
    """Return the configured sources; by default suffix, token-recycling, pld and those that have what they need."""
    names = list(settings.sources)
    if not names:
        names += ["suffix", "token-recycling"]
        names += ["draft-model"] if options.draft_model is not None else []
        names += [options.trained] if options.trained is not None else []
        names += ["spectra-retrieval"] if options.retrieval is not None and settings.retrieval else []
        names += ["pld"]
        names += ["grammar"] if options.grammar is not None else []
    return names if "prediction" in names else [*names, "prediction"]


AUTO = Method(
    name="auto",
    factory=lambda settings, context: Auto(
        context.parts(_source_names(settings, context.options)), context.options.step_costs, settings
    ),
    description="chooses among the sources that have their input, and drafts only what saves time",
    settings=AutoConfig,
)
