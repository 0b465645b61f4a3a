"""Looking back: sources are asked for a draft at an earlier place of the text, which has been written since.

During a pause the sources have not observed the last tokens. Their drafts for an earlier place show within
microseconds, and without a node in any step, whether drafting is worth it again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from engine.protocol import RequestView
from engine.tree import ROOT
from speculators.auto.calibration import claims_and_hits
from speculators.auto.config import AutoConfig
from speculators.auto.prices import Price
from speculators.auto.ranking import RankedNodes, rank
from speculators.auto.requests import RequestState
from speculators.auto.sharing import share_out
from speculators.auto.sources import Clock, Sources

FARTHEST = 8  # tokens to look back
REPEATED = 3  # tokens at the end of the text that must occur earlier, for sources that only repeat
FIRST_LOOK = 1.5e-5  # assumed seconds of a look back with the text tier, until one was measured
LEAST_PAUSE = 4  # steps between two looks back; doubles with each one that changes nothing ...
FARTHEST_LOOK = 16.0  # ... up to this, or more where looking is expensive


class LookBack:
    """Ends a pause early when those sources of a request's tier that catch up were right meanwhile."""

    def __init__(self, name: str, sources: Sources, config: AutoConfig) -> None:
        self._name = name
        self._parts = tuple(sources.looking_back(all_draft) for all_draft in (False, True))
        self._config = config
        self._clocks = (Clock(FIRST_LOOK), Clock(sources.first_drafting[1]))

    def begin_pause(self, state: RequestState, price: Price | None) -> None:
        """Set when to look back first."""
        state.next_look = self._clocks[state.all_draft].pause(LEAST_PAUSE, self._config.overhead, price)
        state.until_look = int(state.next_look)

    def ends_pause(self, view: RequestView, state: RequestState, price: Price | None, drafting: float) -> bool:
        """Count a step of a pause; return whether the pause ends, where a draft takes ``drafting`` seconds."""
        state.pause -= 1
        state.until_look -= 1
        if state.until_look > 0 or not self._parts[state.all_draft] or len(view.context) <= state.n_observed:
            return False
        began = time.perf_counter()
        n_repeated = [part.repeated(view, REPEATED) for part in self._parts[state.all_draft]]  # None: drafts anything
        can_draft = any(n is None or n >= REPEATED for n in n_repeated)
        is_worth_it = can_draft and self._was_worth_it(view, state, price, drafting)
        self._clocks[state.all_draft].add(time.perf_counter() - began)
        state.next_look = min(2.0 * state.next_look, max(state.next_look, FARTHEST_LOOK))
        state.until_look = int(state.next_look)
        if is_worth_it:
            state.pause = 0
        return is_worth_it

    def _was_worth_it(self, view: RequestView, state: RequestState, price: Price | None, drafting: float) -> bool:
        """Calibrate a draft for an earlier place by what followed; return whether it is then worth its cost."""
        n_past, n_nodes = max(state.n_observed, len(view.context) - FARTHEST), self._config.reserve
        past = replace(view, context=view.context.before(n_past))
        state.n_observed = n_past
        proposed = [branch for part in self._parts[state.all_draft] for branch in part.propose(past, n_nodes)]
        branches = [branch for branch in proposed if branch.q is None and not branch.probe]
        ranked = rank(self._name, branches, state.factors, n_nodes)
        if ranked is None:
            return False
        later = view.context.view[n_past:].tolist()
        state.calibrations[state.all_draft].fade(len(later))  # observations from before the pause count less
        state.calibrate(*_compare(ranked, later))
        ranked = rank(self._name, branches, state.factors, n_nodes)
        assert ranked is not None
        return price is None or any(share_out([ranked.reach], [False], price, drafting, self._config.margin))


def _compare(ranked: RankedNodes, tokens: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return claims and hits by depth, as ``claims_and_hits``, of a draft for a place that ``tokens`` followed."""
    branch = ranked.branch
    children: list[list[int]] = [[] for _ in range(len(branch.tokens) + 1)]
    for node, parent in enumerate(branch.above):
        children[parent + 1].append(node)
    right: list[int] = []
    for token in tokens:
        found = [node for node in children[(right[-1] if right else ROOT) + 1] if branch.tokens[node] == token]
        if not found:
            break
        right.append(found[0])
    return claims_and_hits(children, ranked.claims, right, len(tokens))
