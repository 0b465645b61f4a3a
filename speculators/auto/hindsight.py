"""What a draft would have been right about: sources are asked about a place the text has passed already.

A request that rests has sources that have not heard of its last tokens. Asked as if these were still to come, they
show in some microseconds, and without a node in any step, whether drafting pays again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from engine.protocol import RequestView
from engine.tree import ROOT
from speculators.auto.calibration import DEPTHS
from speculators.auto.config import AutoConfig
from speculators.auto.prices import Price
from speculators.auto.ranking import Ranked, rank
from speculators.auto.requests import RequestState
from speculators.auto.sharing import share_out
from speculators.auto.sources import Clock, Sources

FARTHEST = 8  # tokens
REPEATED = 3  # tokens at the end of a text that stand somewhere before, if a source that only repeats was right lately
FIRST_LOOK = 1.5e-5  # seconds of a look of the text tier, before any was measured
LEAST_PAUSE = 4  # steps between two looks at a request; it doubles with every look that changes nothing ...
FARTHEST_LOOK = 16.0  # ... up to this, unless looking is dearer


class LookBack:
    """Ends a pause early when the sources were right meanwhile.

    Args:
        name: of the speculator that merges.
        sources: of which those look back that catch up, of the tier that a request was in.
        config: settings.
    """

    def __init__(self, name: str, sources: Sources, config: AutoConfig) -> None:
        self._name = name
        self._parts = tuple(sources.looking_back(all_draft) for all_draft in (False, True))
        self._config = config
        self._clocks = (Clock(FIRST_LOOK), Clock(sources.first_drafting[1]))

    def rest(self, state: RequestState, price: Price | None) -> None:
        """A pause begins."""
        state.next_look = self._clocks[state.all_draft].pause(LEAST_PAUSE, self._config.overhead, price)
        state.until_look = int(state.next_look)

    def wakes(self, view: RequestView, state: RequestState, price: Price | None, drafting: float) -> bool:
        """Count a step of a request's pause; returns whether the request is to be asked in it after all.

        Args:
            view: of the request.
            state: likewise.
            price: of a step; None: nodes are free.
            drafting: seconds that a draft takes.
        """
        state.pause -= 1
        state.until_look -= 1
        if state.until_look > 0 or not self._parts[state.all_draft] or len(view.context) <= state.heard:
            return False
        began = time.perf_counter()
        pays = self._repeats(view, state) and self._would_have_paid(view, state, price, drafting)
        self._clocks[state.all_draft].add(time.perf_counter() - began)
        state.next_look = min(2.0 * state.next_look, max(state.next_look, FARTHEST_LOOK))
        state.until_look = int(state.next_look)
        if pays:
            state.pause = 0
        return pays

    def _repeats(self, view: RequestView, state: RequestState) -> bool:
        """Whether an earlier place is worth asking about: not where sources that only repeat had nothing to repeat."""
        found = [part.repeated(view, REPEATED) for part in self._parts[state.all_draft]]
        return any(n is None or n >= REPEATED for n in found)

    def _would_have_paid(self, view: RequestView, state: RequestState, price: Price | None, drafting: float) -> bool:
        """Ask about an earlier place, learn from what followed, and say whether such a draft pays by what is known."""
        n_past, n_nodes = max(state.heard, len(view.context) - FARTHEST), self._config.reserve
        past = replace(view, context=view.context.before(n_past))
        state.heard = n_past
        every = [branch for part in self._parts[state.all_draft] for branch in part.propose(past, n_nodes)]
        branches = [branch for branch in every if branch.q is None and not branch.probe]
        ranked = rank(self._name, branches, state.factors, n_nodes)
        if ranked is None:
            return False
        later = view.context.view[n_past:].tolist()
        state.calibrations[state.all_draft].fade(len(later))  # what was seen before the pause counts less
        claimed, hits = claims_and_hits(ranked, later)
        state.calibrate(claimed, hits)
        ranked = rank(self._name, branches, state.factors, n_nodes)
        assert ranked is not None
        return price is None or any(share_out([ranked.reach], [False], price, drafting, self._config.margin))


def claims_and_hits(ranked: Ranked, tokens: Sequence[int]) -> tuple[list[float], list[float]]:
    """Sums by depth over the nodes that ``tokens`` decide about: what was claimed, and how many were right."""
    claimed, hits = [0.0] * DEPTHS, [0.0] * DEPTHS
    branch, on_path, depth = ranked.branch, ROOT, 0
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(branch.above):
        children.setdefault(parent, []).append(node)
    while depth < len(tokens) and (below := children.get(on_path)):
        place = min(depth, DEPTHS - 1)
        claimed[place] += sum(ranked.claims[node] for node in below)
        right = [node for node in below if branch.tokens[node] == tokens[depth]]
        if not right:
            break
        hits[place] += 1.0
        on_path, depth = right[0], depth + 1
    return claimed, hits
