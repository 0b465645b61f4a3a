"""The sources of ``auto``, by what they need, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from engine.protocol import BatchSpeculator, Branch, Needs, RequestView, Speculator
from speculators.auto.prices import Price
from speculators.mixing.fault_isolation import FaultIsolated

FIRST_DRAFTING = 2e-4  # seconds per request and step, before any was measured
FIRST_QUICK = 5e-5  # the same, of sources that need nothing
SMOOTHING = 0.2  # of the newest measurement of what drafting costs
LONGEST_PAUSE = 512  # steps, however dear asking is
SURPRISE = 4.0  # times the usual drafting time that count at most: longer ones are pauses of the process, or compiling


class Sources:
    """Sources whose failures stay inside.

    Those that *catch up* (``catches_up``) read the tokens they have not heard of from the text, when they are asked.
    A source drafts *from text* if it does well without the target's answers behind nodes: because it needs none, or
    because it catches up; drafters with weights (``BatchSpeculator``) do not count, they take more than microseconds.
    Where some of these need nothing at all (pld), they alone are the text tier: the others take several times as long.
    And the tier of all sources does without them if one of its sources counts the text itself (``from_text``). What
    drafts beside the others (``drafts_beside``: from a request's prediction or grammar) is in both tiers, and does not
    count when these are made: most requests bring neither.
    """

    def __init__(self, parts: Sequence[Speculator]) -> None:
        assert parts, "nothing to choose from"
        self.every = [FaultIsolated(part) for part in parts]
        self.needs = reduce(Needs.merge, (part.needs for part in parts), Needs())
        from_text = [part for part, inner in zip(self.every, parts, strict=True) if _drafts_from_text(inner)]
        beside = [part for part, inner in zip(self.every, parts, strict=True) if getattr(inner, "drafts_beside", False)]
        quick = [part for part in from_text if part.needs == Needs() and part not in beside]
        rest = [part for part in from_text if part not in beside]
        self.text = [*(quick or rest), *beside] if rest else []
        counts_text = any(part.needs != Needs() and getattr(part, "from_text", ()) for part in parts)
        self.later = [part for part in self.every if part.catches_up and part not in self.text]
        self.at_once = [part for part in self.every if part not in self.later]  # begin with a request
        self.all = [part for part in self.every if not (counts_text and part in quick)]
        self.first_drafting = (FIRST_QUICK if quick else FIRST_DRAFTING, FIRST_DRAFTING)  # of the tiers, seconds
        self.text_learns = not quick  # whether the text tier learns from what becomes of its drafts
        self.all_look_back = all(part in from_text and part.catches_up for part in self.every)
        self.always_told = [part for part in self.every if not part.catches_up]
        self.can_rest = not any(part.needs.node_top_k for part in self.always_told)
        self.text_names = {
            name
            for part, inner in zip(self.every, parts, strict=True)
            if part in from_text
            for name in (getattr(inner, "from_text", ()) if part.needs != Needs() else (part.name,))
        }
        self.use_answers = self.needs != Needs() or len(self.text) < len(self.every)

    def asked(self, all_draft: bool) -> list[FaultIsolated]:
        """The sources of a tier."""
        return self.all if all_draft else self.text

    def looking_back(self, all_draft: bool) -> list[FaultIsolated]:
        """Those of them that can be asked about an earlier place."""
        return [part for part in self.asked(all_draft) if part.catches_up]

    def gather(self, views: Sequence[RequestView], budgets: Sequence[int], all_draft: bool) -> list[list[Branch]]:
        """What the sources of a tier propose."""
        found: list[list[Branch]] = [[] for _ in views]
        for part in self.asked(all_draft):
            for branches, more in zip(found, part.propose_batch(views, budgets), strict=True):
                branches += more
        return found


def _drafts_from_text(part: Speculator) -> bool:
    if isinstance(part, BatchSpeculator):
        return False
    needs = part.needs
    wants = needs.node_top_k or needs.probe_top_k or needs.heads or needs.hidden_layer is not None or needs.drafter
    return not wants or getattr(part, "catches_up", False)


class Clock:
    """Seconds per request that something takes, smoothed; single long ones are taken for pauses of the process."""

    def __init__(self, seconds: float = FIRST_DRAFTING) -> None:
        self.seconds = seconds

    def add(self, seconds: float) -> None:
        """One more measurement."""
        self.seconds += SMOOTHING * (min(seconds, SURPRISE * self.seconds) - self.seconds)

    def pause(self, least: float, overhead: float, price: Price | None) -> float:
        """Steps after which doing it once more in vain takes no more than ``overhead`` of a request's time."""
        if price is None:
            return least
        return max(least, min(self.seconds / (overhead * price.share), LONGEST_PAUSE))
