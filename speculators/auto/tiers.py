"""The tiers of ``auto`` that draft: which tier a request is in, what its sources propose, and how long that takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from speculators.auto.config import AutoConfig
from speculators.auto.prices import Price
from speculators.auto.proposal import Proposal
from speculators.auto.requests import EXPENSIVE_TIER_SHARE, FIRST_WAIT, LONGEST_WAIT, RequestState
from speculators.auto.sources import Clock, Sources


class Tiers:
    """Text alone (False), and all sources (True)."""

    def __init__(self, sources: Sources, config: AutoConfig) -> None:
        self._sources = sources
        self._config = config
        self.clocks = tuple(map(Clock, sources.first_drafting))  # of drafting and learning
        self._learning = [0.0, 0.0]  # seconds since the last draft

    def clock(self, state: RequestState) -> Clock:
        """Return the clock of a request's tier."""
        return self.clocks[state.all_draft]

    def count_learning(self, state: RequestState, seconds: float) -> None:
        """Add the time in which the sources of a request's tier observed an outcome."""
        self._learning[state.all_draft] += seconds

    def count_drafter(self, seconds: float) -> None:
        """Add the time of the target's drafter in the last step."""
        self._learning[True] += seconds

    def begins_with_text(self, share: float) -> bool:
        """Return whether requests draft from text first if each has ``share`` seconds of a step; 0: not measured."""
        return bool(share and self._sources.text) and self._sources.use_answers and self._is_expensive(share)

    def choose(self, asked: Sequence[Proposal], price: Price | None) -> None:
        """Set the tier of every request."""
        for proposal in asked:
            proposal.all_draft = proposal.state.all_draft = self._asks_all(proposal.state, price)

    def _asks_all(self, state: RequestState, price: Price | None) -> bool:
        if not self._sources.text or not self._sources.use_answers:
            return self._sources.use_answers
        state.wait = max(state.wait - 1, 0)
        if state.wait == 0 and price is not None:
            if self._is_text_first(state, price):
                state.draft_from_text()
            else:
                # After so many drafts from text a failed try takes at most ``overhead`` of the time.
                least = min(self._more / (self._config.overhead * price.share), LONGEST_WAIT)
                state.choose_tier(*self._gains(state, price), least)
        return state.wait == 0

    def drafts_ahead(self, state: RequestState, price: Price | None) -> bool:
        """Return whether the target's drafter drafts now: if it is a source, and the next draft is of all sources."""
        if not self._sources.needs.drafter:
            return False
        if not self._sources.text or state.wait > 1 or price is None:
            return state.wait <= 1
        expected, needed = self._gains(state, price)
        return expected >= needed and not self._is_text_first(state, price)

    def _is_text_first(self, state: RequestState, price: Price) -> bool:
        """Return whether a request drafts from text before its first try of all sources."""
        return state.next_wait == FIRST_WAIT and state.answered_gain is None and self._is_expensive(price.share)

    def _gains(self, state: RequestState, price: Price) -> tuple[float, float]:
        """Return what all sources are expected to add to a draft, and what they must add to be worth it."""
        needed = state.needed_gain(price, self._more)
        return state.expected_gain(needed, self._is_expensive(price.share)), needed

    def count_failure(self, proposal: Proposal, price: Price | None) -> None:
        """Continue with text after a draft that was not worth it, if all sources are expensive."""
        if proposal.all_draft and self._sources.text and price is not None and self._is_expensive(price.share):
            proposal.state.count_answered(0)
            proposal.state.draft_from_text()

    @property
    def _more(self) -> float:
        """Seconds that all sources take longer than those of the text tier."""
        return self.clocks[True].seconds - self.clocks[False].seconds

    def _is_expensive(self, share: float) -> bool:
        return self._more > EXPENSIVE_TIER_SHARE * share

    def seconds(self, asked: Sequence[Proposal]) -> float:
        """Return how long drafting takes for all of them."""
        return sum(self.clocks[proposal.all_draft].seconds for proposal in asked)

    def gather(self, asked: Sequence[Proposal]) -> list[tuple[float, int]]:
        """Set the branches of all proposals; return the seconds and the number of requests of each tier."""
        gathered = []
        for all_draft in (False, True):
            members = [proposal for proposal in asked if proposal.all_draft == all_draft]
            began = time.perf_counter()
            if members:
                views = [proposal.view for proposal in members]
                budgets = [proposal.nodes_to_ask(self._config.reserve) for proposal in members]
                found = self._sources.gather(views, budgets, all_draft)
                for proposal, branches in zip(members, found, strict=True):
                    proposal.branches = branches
            gathered.append((time.perf_counter() - began, len(members)))
        return gathered

    def count_drafting(self, gathered: Sequence[tuple[float, int]], seconds: float) -> None:
        """Add the time of a draft, ``seconds`` in all; ``gathered`` is what ``gather`` returned."""
        rest = (seconds - sum(taken for taken, _ in gathered)) / sum(n for _, n in gathered)
        for all_draft, (taken, n) in enumerate(gathered):
            if n:
                self.clocks[all_draft].add((taken + self._learning[all_draft]) / n + rest)
                self._learning[all_draft] = 0.0
