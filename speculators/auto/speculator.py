"""``auto``: the sources propose drafts, and a cost model decides how many of their nodes are worth it.

Every node has an estimated probability of being accepted: its path probability, calibrated by earlier drafts. It adds
expected tokens, and time, by step times that were measured on this target (``speculators.auto.prices``). Over all
requests that draft together, the number of most probable nodes is chosen that maximises

    expected tokens per second = (B + sum of path probabilities) / (step(B, nodes, read-backs) + drafting)

where ``B`` is the number of requests of a step, each of which commits one token anyway. Nothing is drafted if that is
not above the rate of a step without drafts and read-backs.

In every step a request is in one of three tiers (``speculators.auto.decisions``): *off*, drafting *from text* alone, or
with *all* sources and the target's answers. After drafts that were not worth it a request backs off, twice as long
after every failure, and looks back meanwhile (``speculators.auto.hindsight``). See docs/methods/auto.md.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from msgspec.structs import replace as replace_struct

from engine.protocol import Branch, Decision, Draft, Needs, Outcome, RequestView, Speculator, StepTime
from engine.request import Request
from engine.step_cost import StepCosts
from speculators.auto import decisions
from speculators.auto.config import AutoConfig
from speculators.auto.hindsight import LookBack
from speculators.auto.prices import Price, Prices
from speculators.auto.proposal import Proposal
from speculators.auto.requests import FIRST_WAIT, RequestState, ScopeState
from speculators.auto.sharing import share_out
from speculators.auto.sources import Sources
from speculators.auto.tiers import Tiers
from speculators.method import Method, SpeculatorOptions
from speculators.per_request import PerRequest
from speculators.tenant_state import TenantState

BATCH_PAUSE = 7  # steps without a draft after a batch in which none could be worth it


class Auto(PerRequest[RequestState]):
    """Merges the drafts of its sources into one tree with the nodes that are worth it; all are without ``costs``."""

    name = "auto"

    def __init__(
        self, parts: Sequence[Speculator], costs: StepCosts | None = None, config: AutoConfig | None = None
    ) -> None:
        super().__init__()
        self._sources = Sources(parts)
        self.needs = self._sources.needs
        self._prices = None if costs is None else Prices(costs)
        self._config = config or AutoConfig()
        self._scopes: TenantState[ScopeState] = TenantState()
        self._tiers = Tiers(self._sources, self._config)
        self._look_back = LookBack(self.name, self._sources, self._config)
        self._step: StepTime | None = None  # the last one
        self._step_share = 0.0  # recent seconds of a step per request
        self._is_full = False  # whether no draft could be worth it in the last batch

    def needs_of(self, request: Request) -> Needs:
        """Return what is read back for a request: not its prompt, where that takes longer than drafts would save."""
        if self._prices is None or not self._step_share:
            return self.needs
        if self._tiers.begins_with_text(self._step_share):
            return replace(self.needs, prompt_top_k=0, drafts_first=False)
        scope = self._scope(request)
        saved = self._step_share * scope.expected_gain(request.params.max_tokens)
        is_worth_it = not self._is_full and self._prices.prompt_seconds(len(request.prompt)) <= saved
        return self.needs if scope.reads_prompt(is_worth_it) else replace(self.needs, prompt_top_k=0)

    def new_state(self, view: RequestView) -> RequestState:
        """Begin the request in all sources, or only in those that draft first if the others are expensive."""
        first = self._sources.at_once if self._tiers.begins_with_text(self._step_share) else self._sources.every
        for part in first:
            part.begin(view)
        return RequestState(self._scope(view.request), first, n_observed=len(view.context))

    def _scope(self, request: Request) -> ScopeState:
        """Return the statistics of similar requests; a prediction changes what a request gains."""
        return self._scopes.of(f"{request.scope} predicted" if request.prediction else request.scope, ScopeState)

    def _begin_others(self, view: RequestView, state: RequestState) -> None:
        """Begin the request in the sources that have not begun it."""
        if state.begun is not self._sources.every:
            for part in self._sources.later:
                part.begin(view)
            state.begun = self._sources.every

    def end(self, view: RequestView) -> None:
        state = self.states.pop(view.request_id, None)
        if state is not None:
            state.shared.end(state)
            for part in state.begun:
                part.end(view)

    def settle(self, views: Sequence[RequestView], outcomes: Sequence[Outcome], seconds: float) -> Collection[int]:
        """Keep the tokens of resting requests for the next outcome, and count the steps of their rests."""
        for view, outcome in zip(views, outcomes, strict=True):
            state = self.states[view.request_id]
            state.missed += outcome.tokens
            state.n_resting -= len(outcome.tokens) > 0
        return [view.request_id for view in views if self.states[view.request_id].n_resting <= 0]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Update the statistics, and the sources that cannot catch up later or whose tier drafted."""
        state = self.states[view.request_id]
        if state.missed:
            outcome = replace_struct(outcome, tokens=[*state.missed, *outcome.tokens])
            state.missed = []
        if outcome.step is not None and outcome.step is not self._step:
            self._step = outcome.step
            self._tiers.count_drafter(outcome.step.draft_seconds)
            if self._prices is not None:
                self._prices.observe(outcome.step)
        is_prompt = outcome.n_read > 0 or outcome.prompt_top_ids is not None
        if not is_prompt:
            state.n_steps += 1 if len(outcome.tree) else len(outcome.tokens)  # of skipped steps, too
        if len(outcome.tree):
            state.observe(outcome, self._sources.text_names)
        if not (state.observes_next or is_prompt):
            for part in self._sources.always_observing:
                part.observe(view, outcome)
            return
        if outcome.prompt_top_ids is not None:
            self._begin_others(view, state)
        began = time.perf_counter()
        for part in state.begun:
            part.observe(view, outcome)
        state.n_observed = len(view.context)
        if not is_prompt:  # prompts are observed whether or not anything is drafted
            self._tiers.count_learning(state, time.perf_counter() - began)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        return self.propose_batch((view,), (budget,))[0]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Return the nodes that are worth it over all requests together, with the decision about each request."""
        drafts: list[list[Branch]] = [Draft() for _ in views]
        if not views:
            return drafts
        step = self._step
        batch = len(views) if step is None else max(len(views), step.n_sequences)
        context = len(views[0].context) if step is None else step.context
        if self._prices is not None and max(budgets) > 0:
            self._is_full = not self._prices.can_gain(batch, context, max(budgets), self._config.margin)
            if self._is_full:
                return [self._off(self.states[view.request_id], decisions.BATCH_TOO_LARGE, None) for view in views]
        price = None if self._prices is None else self._prices.of(batch, context, self._config.reserve)
        self._step_share = 0.0 if price is None else price.share
        asked: list[Proposal] = []
        for i, (view, budget) in enumerate(zip(views, budgets, strict=True)):
            state = self.states[view.request_id]
            if budget <= 0:
                continue
            if state.pause and not self._look_back.ends_pause(view, state, price, self._tiers.clock(state).seconds):
                drafts[i] = self._off(state, decisions.BACKS_OFF, price)
            else:
                asked.append(Proposal(i, view, state, budget))
        if asked:
            self._draft(asked, price, context, drafts)
        return drafts

    def _off(self, state: RequestState, decision: Decision, price: Price | None) -> Draft:
        """Return an empty draft; without sources that observe every step, the request also skips its next steps."""
        state.observes_next = False
        is_full = decision is decisions.BATCH_TOO_LARGE
        drafts_next = not is_full and self._tiers.drafts_ahead(state, price)
        if self._sources.always_observing:
            if not self._sources.can_pause:
                decision = decision._replace(reads_back=True)
            return Draft((), decision, drafts_next=drafts_next and not state.pause)
        state.n_resting = BATCH_PAUSE if is_full else state.skip_steps()
        return Draft((), decision, state.n_resting > 0, drafts_next)

    def _draft(self, asked: list[Proposal], price: Price | None, context: float, drafts: list[list[Branch]]) -> None:
        """Set the drafts of all requests that are asked; ``price`` is of a step with few nodes."""
        self._tiers.choose(asked, price)
        for proposal in asked:
            if proposal.all_draft:
                self._begin_others(proposal.view, proposal.state)
        began = time.perf_counter()
        gathered = self._tiers.gather(asked)
        for proposal in asked:
            proposal.rank(self.name)
        n_most, bucket = sum(proposal.n_nodes for proposal in asked), 0
        if price is not None and self._prices is not None:
            price, bucket = self._prices.of(price.batch, context, n_most), price.batch.bit_length()
        self._share(asked, price)
        n_taken = sum(sum(proposal.counts) for proposal in asked)
        for proposal in asked:
            drafts[proposal.place] = self._decide(proposal, price, n_taken, bucket)
        self._tiers.count_drafting(gathered, time.perf_counter() - began)

    def _share(self, asked: list[Proposal], price: Price | None) -> None:
        """Set the counts of all proposals."""
        lists = [(proposal, ranked) for proposal in asked for ranked in proposal.ranked]
        reaches = [ranked.reach for _, ranked in lists]
        counts = [len(reach) for reach in reaches]
        if price is not None and any(counts):
            reads_back = [proposal.all_draft for proposal, _ in lists]
            counts = share_out(reaches, reads_back, price, self._tiers.seconds(asked), self._config.margin)
        for (proposal, _), count in zip(lists, counts, strict=True):
            proposal.counts.append(count)

    def _decide(self, proposal: Proposal, price: Price | None, n_taken: int, bucket: int) -> Draft:
        """Return the draft of a request; if it is empty, the request backs off."""
        state = proposal.state
        branches = proposal.take(price, n_taken)
        state.n_observed = len(proposal.view.context)
        if not branches:
            draft = self._failed(proposal, price, bucket)
            state.shared.count(bucket, False)
            return draft
        state.shared.count(bucket, True)
        state.observes_next = proposal.all_draft or self._sources.text_learns
        decision = decisions.DRAFTS_FROM_TEXT
        if proposal.all_draft:
            decision = decisions.DRAFTS_FROM_ALL if state.next_wait == FIRST_WAIT else decisions.PROBES_ALL
        return Draft(branches, decision, drafts_next=self._tiers.drafts_ahead(state, price))

    def _failed(self, proposal: Proposal, price: Price | None, bucket: int) -> Draft:
        """Back off after a draft that is not worth it, and return an empty one."""
        state = proposal.state
        if proposal.ranked and not self._sources.all_look_back:
            # Sources that cannot look back would never be tried again if old observations kept their weight.
            for calibrations in (state.shared.calibrations, state.calibrations):
                calibrations[state.all_draft].fade(1 + int(state.next_pause))
        self._tiers.count_failure(proposal, price)
        state.fail(bucket, self._tiers.clock(state).pause(self._config.longest_pause, self._config.overhead, price))
        self._look_back.begin_pause(state, price)
        if state.pause:
            return self._off(state, decisions.NOT_WORTH_IT if proposal.ranked else decisions.NO_PROPOSAL, price)
        state.observes_next = proposal.all_draft or self._sources.text_learns
        decision = decisions.OBSERVES if proposal.all_draft else decisions.NOT_WORTH_IT
        return Draft((), decision, drafts_next=self._tiers.drafts_ahead(state, price))


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
