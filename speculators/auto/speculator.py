"""``auto``: the sources propose, a cost model decides how much of it is worth a step, and whether asking is.

Every node has an estimated probability of being accepted (its path probability, calibrated by what came true). Adding
nodes in that order adds expected tokens; it also adds time, by the step times measured on this target
(``engine.step_cost``), corrected while it runs (``speculators.auto.prices``). Over all requests that draft together,
the node count is chosen that maximises

    expected tokens per second = (B + sum of path probabilities) / (step(B, nodes, read-backs) + drafting)

where ``B`` counts the requests of a step (each commits one token anyway); with less to gain than a step without drafts
and read-backs would bring, nothing is drafted. So a request is in one of three tiers in every step
(``speculators.auto.decisions``): *off*, drafting *from text* alone, or with *all* sources and the target's answers.
A request that gains nothing is not asked for a while, twice as long after every failure; meanwhile its sources are
asked about places that the text has passed (``speculators.auto.hindsight``), which costs no step anything.
docs/methods/auto.md shows curves and figures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from engine.protocol import Branch, Decision, Draft, Needs, Outcome, RequestView, Rest, Speculator, StepTime
from engine.request import Request
from engine.step_cost import StepCosts
from speculators.auto.config import AutoConfig
from speculators.auto.decisions import (
    BATCH,
    FULL_PAYS,
    FULL_TRIES,
    LISTENS,
    NOTHING,
    RESTS,
    TEXT_PAYS,
    UNLIKELY,
)
from speculators.auto.hindsight import LookBack
from speculators.auto.prices import Price, Prices
from speculators.auto.proposal import Proposal
from speculators.auto.requests import FIRST_WAIT, RequestState, ScopeState
from speculators.auto.sharing import share_out
from speculators.auto.sources import Sources
from speculators.auto.tiers import Tiers
from speculators.method import Method, SpeculatorOptions
from speculators.tenant_state import TenantState

BATCH_REST = 7  # steps until a request is asked again after one in a batch in which drafts could not pay


class Auto:
    """Sources in one tree, as far as they pay.

    Args:
        parts: the sources.
        costs: measured step times; without them nodes count as free up to the request's limit.
        config: settings.
    """

    name = "auto"

    def __init__(
        self, parts: Sequence[Speculator], costs: StepCosts | None = None, config: AutoConfig | None = None
    ) -> None:
        self._sources = Sources(parts)
        self.needs = self._sources.needs
        self._prices = None if costs is None else Prices(costs)
        self._config = config or AutoConfig()
        self._requests: dict[int, RequestState] = {}
        self._scopes: TenantState[ScopeState] = TenantState()
        self._tiers = Tiers(self._sources, self._config.reserve, self._config.overhead)
        self._look_back = LookBack(self.name, self._sources, self._config)
        self._step: StepTime | None = None  # the last one
        self._step_share = 0.0  # seconds of a step that a request had lately
        self._is_full = False  # whether drafts could not pay in the last batch

    def needs_of(self, request: Request) -> Needs:
        """What is read back for a request: of its prompt nothing, where that takes longer than drafts would save."""
        if self._prices is None or not self._step_share:
            return self.needs
        if self._tiers.begin_with_text(self._step_share):
            return replace(self.needs, prompt_top_k=0, drafts_first=False)
        scope = self._scope(request)
        saved = self._step_share * scope.expected_gain(request.params.max_tokens)
        pays = not self._is_full and self._prices.prompt_seconds(len(request.prompt)) <= saved
        return self.needs if scope.reads_prompt(pays) else replace(self.needs, prompt_top_k=0)

    def begin(self, view: RequestView) -> None:
        """The sources begin: all of them, or only those that will be asked first, where the others are dear."""
        shared = self._scope(view.request)
        first = self._sources.at_once if self._tiers.begin_with_text(self._step_share) else self._sources.every
        self._requests[view.request_id] = RequestState(shared, first, heard=len(view.context))
        for part in first:
            part.begin(view)

    def _scope(self, request: Request) -> ScopeState:
        """What requests like it have shown: those with a prediction gain by it, which says nothing of the others."""
        return self._scopes.of(f"{request.scope} predicted" if request.prediction else request.scope, ScopeState)

    def _begin_others(self, view: RequestView, state: RequestState) -> None:
        """Those sources begin that have not yet: there is something for them to hear, or they are asked."""
        if state.begun is not self._sources.every:
            for part in self._sources.later:
                part.begin(view)
            state.begun = self._sources.every

    def end(self, view: RequestView) -> None:
        """Forwarded to all sources that have begun."""
        state = self._requests.pop(view.request_id, None)
        if state is not None:
            state.shared.end(state)
            for part in state.begun:
                part.end(view)

    # -- learning ------------------------------------------------------------------------------------------------

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Forwarded to all sources, where they cannot catch up later; what was claimed is held against what came."""
        state = self._requests[view.request_id]
        if outcome.step is not None and outcome.step is not self._step:
            self._step = outcome.step
            self._tiers.drafted(outcome.step.draft_seconds)
            if self._prices is not None:
                self._prices.observe(outcome.step)
        is_prompt = outcome.n_read > 0 or outcome.prompt_top_ids is not None
        if not is_prompt:
            state.n_steps += 1 if len(outcome.tree) else len(outcome.tokens)  # of steps that it rested, too
        if len(outcome.tree):
            state.judge(outcome, self._sources.text_names)
        if not (state.told or is_prompt):
            for part in self._sources.always_told:
                part.observe(view, outcome)
            return
        if outcome.prompt_top_ids is not None:
            self._begin_others(view, state)
        began = time.perf_counter()
        for part in state.begun:
            part.observe(view, outcome)
        state.heard = len(view.context)
        if not is_prompt:  # which is learnt from whether or not anything is drafted
            self._tiers.learnt(state, time.perf_counter() - began)

    # -- drafting ------------------------------------------------------------------------------------------------

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """``propose_batch`` of one."""
        return self.propose_batch((view,), (budget,))[0]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """The nodes that pay, over all requests together, each with what was decided about it."""
        drafts: list[list[Branch]] = [Draft() for _ in views]
        if not views:
            return drafts
        step = self._step
        batch = len(views) if step is None else max(len(views), step.n_sequences)
        context = len(views[0].context) if step is None else step.context
        if not self._may_pay(batch, context, max(budgets)):
            for i, view in enumerate(views):
                drafts[i] = self._off(self._requests[view.request_id], BATCH, None)
            return drafts
        price = None if self._prices is None else self._prices.of(batch, context, self._config.reserve)
        self._step_share = 0.0 if price is None else price.share
        asked: list[Proposal] = []
        for i, (view, budget) in enumerate(zip(views, budgets, strict=True)):
            state = self._requests[view.request_id]
            if budget <= 0:
                continue
            if state.pause and not self._look_back.wakes(view, state, price, self._tiers.clock(state).seconds):
                drafts[i] = self._off(state, RESTS, price)
            else:
                asked.append(Proposal(i, view, state, budget))
        if asked:
            self._draft(asked, price, context, drafts)
        return drafts

    def _may_pay(self, batch: int, context: float, budget: int) -> bool:
        """Whether drafts can pay at all in such a batch."""
        if self._prices is None or budget <= 0:
            return True
        self._is_full = not self._prices.may_pay(batch, context, budget, self._config.margin)
        return not self._is_full

    def _off(self, state: RequestState, decision: Decision, price: Price | None) -> Draft:
        """No draft: nothing is read back, unless a source has to hear it all; nor a question for a while."""
        state.told = False
        wants_next = decision is not BATCH and self._tiers.drafts_ahead(state, price)
        if self._sources.always_told:
            heard = decision if self._sources.can_rest else decision._replace(reads_back=True)
            return Draft((), heard, wants_next=wants_next and not state.pause)
        rest = Rest(BATCH_REST, BATCH) if decision is BATCH else Rest(state.rest(), RESTS)
        return Draft((), decision, rest, wants_next)

    def _draft(self, asked: list[Proposal], price: Price | None, context: float, drafts: list[list[Branch]]) -> None:
        """Ask the sources, and keep what pays; ``price`` is of a step with few nodes."""
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
        self._tiers.count(gathered, time.perf_counter() - began)

    def _share(self, asked: list[Proposal], price: Price | None) -> None:
        lists = [(proposal, ranked) for proposal in asked for ranked in proposal.ranked]
        reaches = [ranked.reach for _, ranked in lists]
        counts = [len(reach) for reach in reaches]
        if price is not None and any(counts):
            heard = [proposal.all_draft for proposal, _ in lists]
            counts = share_out(reaches, heard, price, self._tiers.seconds(asked), self._config.margin)
        for (proposal, _), count in zip(lists, counts, strict=True):
            proposal.counts.append(count)

    def _decide(self, proposal: Proposal, price: Price | None, n_taken: int, bucket: int) -> Draft:
        """What a request drafts; without anything, its drafting pauses."""
        state = proposal.state
        branches = proposal.take(price, n_taken)
        state.heard = len(proposal.view.context)
        if not branches:
            draft = self._failed(proposal, price, bucket)
            state.shared.count(bucket, False)
            return draft
        state.shared.count(bucket, True)
        state.told = proposal.all_draft or self._sources.text_learns
        decision = TEXT_PAYS
        if proposal.all_draft:
            decision = FULL_PAYS if state.next_wait == FIRST_WAIT else FULL_TRIES
        return Draft(branches, decision, wants_next=self._tiers.drafts_ahead(state, price))

    def _failed(self, proposal: Proposal, price: Price | None, bucket: int) -> Draft:
        """Nothing pays."""
        state = proposal.state
        if proposal.ranked and not self._sources.all_look_back:
            # Unless what speaks against their claims ages, sources that cannot look back never prove right again.
            for calibrations in (state.shared.calibrations, state.calibrations):
                calibrations[state.all_draft].fade(1 + int(state.next_pause))
        self._tiers.failed(proposal, price)
        state.fail(bucket, self._tiers.clock(state).pause(self._config.longest_pause, self._config.overhead, price))
        self._look_back.rest(state, price)
        if state.pause:
            return self._off(state, UNLIKELY if proposal.ranked else NOTHING, price)
        state.told = proposal.all_draft or self._sources.text_learns
        return Draft((), LISTENS if proposal.all_draft else UNLIKELY, wants_next=self._tiers.drafts_ahead(state, price))


def _source_names(settings: AutoConfig, options: SpeculatorOptions) -> list[str]:
    """Return the configured sources, or the mixed model and whatever else has its input."""
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
