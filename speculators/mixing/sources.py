"""Sources that share the drafts of a request, by what they need: the text alone, or answers of the target too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from engine.protocol import Needs, Outcome, RequestView, Speculator
from engine.request import Request
from speculators.mixing.fault_isolation import FaultIsolated


class Sources:
    """The sources of ``auto``, whose exceptions are caught.

    ``text`` are the sources that need nothing from the target and catch up with a text that they did not observe (pld);
    without any, all that catch up and have no weights. ``all`` leaves out those that need nothing if another source
    counts the text itself (``from_text``). Sources that serve some requests alone (``serves``: predictions, grammars)
    are asked in addition for these requests. Sources that are not in ``at_once`` begin a request when ``all`` are asked
    for the first time.
    """

    def __init__(self, parts: Sequence[Speculator]) -> None:
        assert parts, "nothing to choose from"
        self.needs = reduce(Needs.merge, (part.needs for part in parts), Needs())
        pairs = [(FaultIsolated(part), part) for part in parts]
        self.every = [part for part, _ in pairs]
        self._of_request = [(part, inner.serves) for part, inner in pairs if hasattr(inner, "serves")]
        pairs = [(part, inner) for part, inner in pairs if not hasattr(inner, "serves")]
        catching_up = [part for part, inner in pairs if part.catches_up and not getattr(inner, "has_weights", False)]
        quick = [part for part in catching_up if part.needs == Needs()]
        counts_text = any(inner.needs != Needs() and getattr(inner, "from_text", ()) for _, inner in pairs)
        self.text = quick or catching_up
        self.all = [part for part, _ in pairs if not (counts_text and part in quick)]
        self.at_once = [part for part, _ in pairs if not part.catches_up or part in self.text]
        self._later = [part for part, _ in pairs if part not in self.at_once]
        self._observing = [part for part, inner in pairs if type(inner).observe is not Speculator.observe]
        self.looking = [part for part, inner in pairs if part in self.text and hasattr(inner, "look_back")]
        self.always_observing = [part for part in self.all if not part.catches_up]
        self.reads_always = any(part.needs.node_top_k for part in self.always_observing)
        self.answers_help = self.needs != Needs() or self.all != self.text

    def of(self, request: Request) -> list[FaultIsolated]:
        """Return the sources that serve this request and not all."""
        return [part for part, serves in self._of_request if serves(request)]

    def begin_all(self, view: RequestView) -> None:
        """Begin a request in the sources that are not in ``at_once``."""
        for part in self._later:
            part.begin(view)

    def observe(self, views: Sequence[RequestView], outcomes: Sequence[Outcome]) -> None:
        """Let all sources that learn observe the outcomes of requests that have begun in all."""
        for part in self._observing:
            part.observe_batch(views, outcomes)

    def observe_prompt(self, view: RequestView, outcome: Outcome) -> None:
        """Let the sources that catch up observe the answers after a prompt; the others have observed them."""
        for part in self._observing:
            if part not in self.always_observing:
                part.observe(view, outcome)

    def end(self, view: RequestView, has_begun_all: bool, own: Sequence[FaultIsolated]) -> None:
        """Drop the state of a request."""
        for part in (*self.at_once, *own, *(self._later if has_begun_all else ())):
            part.end(view)
