"""The sources of ``auto`` by what they need, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from engine.protocol import Branch, Needs, RequestView, Speculator
from speculators.auto.prices import Price
from speculators.mixing.fault_isolation import FaultIsolated

FIRST_DRAFTING = 2e-4  # seconds per request and step, before any was measured
FIRST_QUICK = 5e-5  # the same, for sources that need nothing
SMOOTHING = 0.2  # weight of the newest measurement of drafting time
LONGEST_PAUSE = 512  # steps, however expensive drafting is
OUTLIER = 4.0  # a measurement counts as at most this many times the usual one; process pauses and compiling take longer


class Sources:
    """The sources of both tiers; their exceptions are caught.

    Sources that *catch up* (``catches_up``) read the tokens that they did not observe from the text when they draft.
    Sources draft *from text* if they do well without the target's answers after nodes: they need none, or catch up.
    Drafters with weights (``has_weights``) do not count as such, because they take more than microseconds.

    The text tier has the sources that need nothing (pld), if there are any, because the others take several times as
    long; otherwise all that draft from text. The tier of all sources leaves out those that need nothing if another
    source counts the text itself (``from_text``). Sources with ``drafts_in_every_tier``, which draft from a request's
    prediction or grammar, are in both tiers and do not influence this choice: most requests have neither.
    """

    def __init__(self, parts: Sequence[Speculator]) -> None:
        assert parts, "nothing to choose from"
        self.every = [FaultIsolated(part) for part in parts]
        self.needs = reduce(Needs.merge, (part.needs for part in parts), Needs())
        pairs = [*zip(self.every, parts, strict=True)]
        from_text = [part for part, inner in pairs if _drafts_from_text(inner)]
        of_request = [part for part, inner in pairs if getattr(inner, "drafts_in_every_tier", False)]
        of_text = [part for part in from_text if part not in of_request]
        quick = [part for part in of_text if part.needs == Needs()]
        self.text = [*(quick or of_text), *of_request] if of_text else []
        counts_text = any(part.needs != Needs() and getattr(part, "from_text", ()) for part in parts)
        self.later = [part for part in self.every if part.catches_up and part not in self.text]
        self.at_once = [part for part in self.every if part not in self.later]  # begin with a request
        self.all = [part for part in self.every if not (counts_text and part in quick)]
        self.first_drafting = (FIRST_QUICK if quick else FIRST_DRAFTING, FIRST_DRAFTING)  # seconds, by tier
        self.text_learns = not quick  # whether sources of the text tier learn from the outcomes of its drafts
        self.all_look_back = all(part in from_text and part.catches_up for part in self.every)
        self.always_observing = [part for part in self.every if not part.catches_up]
        self.can_pause = not any(part.needs.node_top_k for part in self.always_observing)
        self.text_names = {
            name
            for part, inner in pairs
            if part in from_text
            for name in (getattr(inner, "from_text", ()) if part.needs != Needs() else (part.name,))
        }
        self.use_answers = self.needs != Needs() or len(self.text) < len(self.every)

    def asked(self, all_draft: bool) -> list[FaultIsolated]:
        """Return the sources of a tier."""
        return self.all if all_draft else self.text

    def looking_back(self, all_draft: bool) -> list[FaultIsolated]:
        """Return the sources of a tier that can draft at an earlier place of the text."""
        return [part for part in self.asked(all_draft) if part.catches_up]

    def gather(self, views: Sequence[RequestView], budgets: Sequence[int], all_draft: bool) -> list[list[Branch]]:
        """Return the proposals of a tier's sources for every request."""
        found: list[list[Branch]] = [[] for _ in views]
        for part in self.asked(all_draft):
            for branches, more in zip(found, part.propose_batch(views, budgets), strict=True):
                branches += more
        return found


def _drafts_from_text(part: Speculator) -> bool:
    if getattr(part, "has_weights", False):
        return False
    needs = part.needs
    has_needs = needs.node_top_k or needs.probe_top_k or needs.heads or needs.hidden_layer is not None or needs.drafter
    return not has_needs or getattr(part, "catches_up", False)


class Clock:
    """Smoothed seconds per request of some work; a single long measurement counts as a pause of the process."""

    def __init__(self, seconds: float = FIRST_DRAFTING) -> None:
        self.seconds = seconds

    def add(self, seconds: float) -> None:
        self.seconds += SMOOTHING * (min(seconds, OUTLIER * self.seconds) - self.seconds)

    def pause(self, least: float, overhead: float, price: Price | None) -> float:
        """Return after how many steps repeating the work takes at most ``overhead`` of a request's time."""
        if price is None:
            return least
        return max(least, min(self.seconds / (overhead * price.share), LONGEST_PAUSE))
