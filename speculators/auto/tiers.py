"""The tiers of ``auto`` that draft: which of them a request is in, what it asks there, and how long that takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from speculators.auto.prices import Price
from speculators.auto.proposal import Proposal
from speculators.auto.requests import DEAR, FIRST_WAIT, LONGEST_WAIT, RequestState
from speculators.auto.sources import Clock, Sources


class Tiers:
    """Text alone (False), and all sources (True).

    Args:
        sources: of both.
        reserve: nodes asked for beyond what paid lately.
        overhead: share of a request's step time that asking all of them in vain may take.
    """

    def __init__(self, sources: Sources, reserve: int, overhead: float) -> None:
        self._sources = sources
        self._reserve, self._overhead = reserve, overhead
        self.clocks = tuple(map(Clock, sources.first_drafting))  # of drafting and learning
        self._learning = [0.0, 0.0]  # seconds since the last draft

    def clock(self, state: RequestState) -> Clock:
        """Of a request's tier."""
        return self.clocks[state.all_draft]

    def learnt(self, state: RequestState, seconds: float) -> None:
        """The sources of a request's tier have learnt from an answer."""
        self._learning[state.all_draft] += seconds

    def drafted(self, seconds: float) -> None:
        """The target's drafter took so long in the last step, for requests of the tier of all sources."""
        self._learning[True] += seconds

    def begin_with_text(self, share: float) -> bool:
        """Whether requests draft from text first, if each has ``share`` seconds of a step; 0: none was timed yet."""
        return bool(share and self._sources.text) and self._sources.use_answers and self._are_dear(share)

    def choose(self, asked: Sequence[Proposal], price: Price | None) -> None:
        """Put every request that is asked into a tier."""
        for proposal in asked:
            proposal.all_draft = proposal.state.all_draft = self._asks_all(proposal.state, price)

    def _asks_all(self, state: RequestState, price: Price | None) -> bool:
        if not self._sources.text or not self._sources.use_answers:
            return self._sources.use_answers
        state.wait = max(state.wait - 1, 0)
        if state.wait == 0 and price is not None:
            if self._comes_text_first(state, price):
                state.draft_from_text()
            else:
                state.weigh_answers(*self._gains(state, price), self._least_wait(price))
        return state.wait == 0

    def drafts_ahead(self, state: RequestState, price: Price | None) -> bool:
        """Whether the target's drafter, if it is a source, drafts for a request's next draft now: if all sources will
        make that, as far as is known."""
        if not self._sources.needs.drafter:
            return False
        if not self._sources.text or state.wait > 1 or price is None:
            return state.wait <= 1
        believed, needed = self._gains(state, price)
        return believed >= needed and not self._comes_text_first(state, price)

    def _comes_text_first(self, state: RequestState, price: Price) -> bool:
        """Whether what pays at once, or nothing, comes before all sources."""
        return state.next_wait == FIRST_WAIT and state.answered_gain is None and self._are_dear(price.share)

    def _gains(self, state: RequestState, price: Price) -> tuple[float, float]:
        """What all sources are believed to add to a draft, and what they must."""
        needed = state.needed_gain(price, self._more)
        return state.believed_gain(needed, self._are_dear(price.share)), needed

    def failed(self, proposal: Proposal, price: Price | None) -> None:
        """Nothing pays: where all sources are dear, text is tried next."""
        if proposal.all_draft and self._sources.text and price is not None and self._are_dear(price.share):
            proposal.state.count_answered(0)
            proposal.state.draft_from_text()

    def _least_wait(self, price: Price) -> float:
        """Drafts from text after which asking all sources once in vain takes no more than ``overhead`` of the time."""
        return min(self._more / (self._overhead * price.share), LONGEST_WAIT)

    @property
    def _more(self) -> float:
        """Seconds that asking all sources takes more than asking those that draft from text."""
        return self.clocks[True].seconds - self.clocks[False].seconds

    def _are_dear(self, share: float) -> bool:
        return self._more > DEAR * share

    def seconds(self, asked: Sequence[Proposal]) -> float:
        """What drafting takes for all of them."""
        return sum(self.clocks[proposal.all_draft].seconds for proposal in asked)

    def gather(self, asked: Sequence[Proposal]) -> list[tuple[float, int]]:
        """Ask the sources, tier by tier; returns seconds of each tier, and how many requests are in it."""
        gathered = []
        for all_draft in (False, True):
            members = [proposal for proposal in asked if proposal.all_draft == all_draft]
            began = time.perf_counter()
            if members:
                views = [proposal.view for proposal in members]
                budgets = [proposal.nodes_to_ask(self._reserve) for proposal in members]
                found = self._sources.gather(views, budgets, all_draft)
                for proposal, branches in zip(members, found, strict=True):
                    proposal.branches = branches
            gathered.append((time.perf_counter() - began, len(members)))
        return gathered

    def count(self, gathered: Sequence[tuple[float, int]], seconds: float) -> None:
        """Drafting is done, after ``seconds``; ``gathered`` is what ``gather`` returned."""
        rest = (seconds - sum(taken for taken, _ in gathered)) / sum(n for _, n in gathered)
        for all_draft, (taken, n) in enumerate(gathered):
            if n:
                self.clocks[all_draft].add((taken + self._learning[all_draft]) / n + rest)
                self._learning[all_draft] = 0.0
