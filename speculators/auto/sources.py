"""The sources of ``auto``, by what they need, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from engine.protocol import BatchSpeculator, Branch, Needs, RequestView, Speculator
from speculators.auto.prices import Price
from speculators.mixing.fault_isolation import FaultIsolated

FIRST_DRAFTING = 2e-4  # seconds per request and step, before any was measured
SMOOTHING = 0.2  # of the newest measurement of what drafting costs
LONGEST_PAUSE = 512  # steps, however dear asking is
SURPRISE = 4.0  # times the usual drafting time that count at most: longer ones are pauses of the process, or compiling


class Sources:
    """Sources whose failures stay inside.

    Those that *catch up* (``catches_up``) read the tokens they have not heard of from the text, when they are asked.
    A source drafts *from text* if it does well without the target's answers behind nodes: because it needs none, or
    because it catches up; drafters with weights (``BatchSpeculator``) do not count, they take more than microseconds.
    """

    def __init__(self, parts: Sequence[Speculator]) -> None:
        assert parts, "nothing to choose from"
        self.every = [FaultIsolated(part) for part in parts]
        self.needs = reduce(Needs.merge, (part.needs for part in parts), Needs())
        is_text = [_drafts_from_text(part) for part in parts]
        self.text = [part for part, text in zip(self.every, is_text, strict=True) if text]
        self.look_back = [part for part in self.text if part.catches_up]
        self.all_look_back = len(self.look_back) == len(self.every)
        self.always_told = [part for part in self.every if not part.catches_up]
        self.can_rest = not any(part.needs.node_top_k for part in self.always_told)
        self.text_names = {
            name
            for part, text in zip(parts, is_text, strict=True)
            if text
            for name in (getattr(part, "from_text", ()) if part.needs != Needs() else (part.name,))
        }
        self.use_answers = len(self.text) < len(self.every) or self.needs != Needs()

    def gather(self, views: Sequence[RequestView], budgets: Sequence[int], from_text: bool) -> list[list[Branch]]:
        """What all sources propose, or those that draft from text."""
        found: list[list[Branch]] = [[] for _ in views]
        for part in self.text if from_text else self.every:
            for branches, more in zip(found, part.propose_batch(views, budgets), strict=True):
                branches += more
        return found


def _drafts_from_text(part: Speculator) -> bool:
    if isinstance(part, BatchSpeculator):
        return False
    needs = part.needs
    wants = needs.node_top_k or needs.probe_top_k or needs.heads or needs.hidden_layer is not None
    return not wants or getattr(part, "catches_up", False)


class Clock:
    """Seconds per request that something takes, smoothed; single long ones are taken for pauses of the process."""

    def __init__(self) -> None:
        self.seconds = FIRST_DRAFTING

    def add(self, seconds: float) -> None:
        """One more measurement."""
        self.seconds += SMOOTHING * (min(seconds, SURPRISE * self.seconds) - self.seconds)

    def pause(self, least: float, overhead: float, price: Price | None) -> float:
        """Steps after which doing it once more in vain takes no more than ``overhead`` of a request's time."""
        if price is None:
            return least
        return max(least, min(self.seconds / (overhead * price.share), LONGEST_PAUSE))
