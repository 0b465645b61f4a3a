"""What ``auto`` knows about one request, and when it asks again after vain tries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from engine.protocol import Branch, Outcome
from speculators.auto.calibration import DepthCalibration, claims_and_hits
from speculators.auto.prices import Price
from speculators.mixing.estimates import FIRST_CLAIM
from speculators.mixing.fault_isolation import FaultIsolated

FIRST_PAUSE = 0.25  # steps; it doubles with every failure, so that the first two are forgiven
FIRST_WAIT = 16  # drafts from text alone until all sources are tried again; it doubles, too ...
LONGEST_WAIT = 512  # ... up to this
HOPE, HOPE_AGAIN = 2.0, 1.25  # times what all sources must add to pay, that they are believed to add, first and later
UNTRIED = 1 / 32  # of what they must add: how much more a scope believes with every request that leaves them untried
DEAR = 0.25  # of a request's share of a step: if all sources take so much longer, text is next where they do not pay
MEMORY = 0.1  # of the newest step in what a request gains
RECENT = 1 / 8  # of the newest request in what requests of a scope gain
MOST_UNREAD = 31  # requests in a row whose prompt is not read back
FAMILIAR = 1 / 12  # of the newest draft in how often drafts of a scope pay
FORGIVING = 1 / 256  # of what probes are first believed to bring, that a step without them restores


class ScopeState:
    """What all requests of a scope have shown."""

    __slots__ = ("answered_gain", "calibrations", "gain", "n_ended", "n_unread", "paid", "steps")

    def __init__(self) -> None:
        self.calibrations = (DepthCalibration(), DepthCalibration())  # of the text tier, and of all sources
        self.gain = FIRST_CLAIM  # accepted nodes per step of a request
        self.answered_gain: float | None = None  # nodes that all sources added to a draft; None: none has ended
        self.steps: float | None = None  # of a request
        self.n_ended = 0  # requests
        self.n_unread = 0  # requests since one whose prompt was read back
        self.paid: dict[int, float] = {}  # bucket of batches -> share of drafts that paid, the last ones counting most

    def count(self, bucket: int, paid: bool) -> None:
        """A request of a batch was asked for a draft."""
        before = self.paid.get(bucket, 1.0)
        self.paid[bucket] = before + FAMILIAR * (paid - before)

    def expected_gain(self, max_tokens: int) -> float:
        """Nodes that a request which may write ``max_tokens`` will have accepted, by what others had."""
        return self.gain * (max_tokens if self.steps is None else min(self.steps, max_tokens))

    def reads_prompt(self, pays: bool) -> bool:
        """Whether the next request's prompt is read back: if it pays, and now and then, to see whether it would."""
        self.n_unread = 0 if pays or self.n_unread == MOST_UNREAD else self.n_unread + 1
        return self.n_unread == 0

    def end(self, state: RequestState) -> None:
        """A request is over."""
        if state.n_steps:
            self.n_ended += 1
            weight = max(RECENT, 1.0 / (1 + self.n_ended))  # what is assumed first weighs as much as one request
            self.gain += weight * (state.n_accepted / state.n_steps - self.gain)
            if state.n_full:
                answered = state.n_answered / state.n_full
                before = answered if self.answered_gain is None else self.answered_gain
                self.answered_gain = before + weight * (answered - before)
            self.steps = state.n_steps if self.steps is None else self.steps + weight * (state.n_steps - self.steps)


@dataclass(slots=True)
class RequestState:
    """Statistics of one request."""

    shared: ScopeState
    begun: Sequence[FaultIsolated]  # sources
    calibrations: tuple[DepthCalibration, DepthCalibration] = field(
        default_factory=lambda: (DepthCalibration(), DepthCalibration())
    )
    all_draft: bool = True  # in its last draft, all sources
    pause: int = 0  # steps until the sources are asked again
    next_pause: float = 0.0  # after the next failure; 0: none yet
    until_look: int = 0  # steps of a pause until it is looked back
    next_look: float = 0.0  # steps between two looks
    told: bool = True  # whether sources hear of the next outcome that they could catch up with
    heard: int = 0  # tokens of the text that sources were told of at least
    n_steps: int = 0
    n_accepted: int = 0  # nodes
    claims: list[float] = field(default_factory=list)  # of the nodes of its current tree, in order
    lately: float = 64.0  # nodes that paid, following rises at once and falls slowly
    gain: float = 1.0  # accepted nodes per step with a draft
    answered_gain: float | None = None  # of these, what all sources are believed to add; None: not asked yet
    n_full: int = 0  # drafts of all sources
    n_answered: int = 0  # nodes that they added: of read-backs, probes and drafters
    wait: int = 0  # drafts from text alone until all sources are tried again
    next_wait: int = FIRST_WAIT
    probe_gain: float = FIRST_CLAIM  # accepted nodes per step of sources that probe
    probing: frozenset[str] = frozenset()  # sources that probed

    @property
    def factors(self) -> list[float]:
        """What to multiply claims with, by depth."""
        return self.calibrations[self.all_draft].factors(self.shared.calibrations[self.all_draft])

    def calibrate(self, claimed: Sequence[float], hits: Sequence[float]) -> None:
        """What the sources of its tier claimed by depth, and what came true: of it, and of its scope."""
        for calibrations in (self.shared.calibrations, self.calibrations):
            calibrations[self.all_draft].add(claimed, hits)

    def fail(self, bucket: int, longest: float) -> None:
        """A draft that did not pay: the next is asked for after a pause, twice as long as the one before.

        A request's first pause is long where drafts of its scope in such batches do not pay either.
        """
        if not self.next_pause:
            self.next_pause = min(FIRST_PAUSE / max(self.shared.paid.get(bucket, 1.0), FORGIVING), longest)
        self.pause = int(self.next_pause)
        self.next_pause = min(2.0 * self.next_pause, longest)

    def rest(self) -> int:
        """Steps that pass now without a question and a look."""
        steps = max(min(self.pause, self.until_look - 1), 0)
        self.pause -= steps
        self.until_look -= steps
        return steps

    def probe(self, probes: Sequence[Branch]) -> None:
        """Probes that a draft keeps of those wanted; where none could be paid for, they are tried again some day."""
        self.probing |= {probe.source for probe in probes}
        if not probes:
            self.probe_gain += FORGIVING * (1 + self.pause) * (FIRST_CLAIM - self.probe_gain)

    def needed_gain(self, price: Price, more: float) -> float:
        """What all sources must add to a draft of the request to pay, if they take ``more`` seconds more."""
        reading = price.factor * (price.reading / price.batch + price.read_row * (1 + len(self.claims)))
        token = price.share / (1.0 + self.gain)  # seconds that one more token saves
        return (reading + max(more, 0.0)) / token

    def believed_gain(self, needed: float, are_dear: bool) -> float:
        """What all sources are believed to add, where ``needed`` would pay: before the request has asked them what they
        added to others, but enough for a try where that is cheap."""
        if self.answered_gain is not None:
            return self.answered_gain
        known = self.shared.answered_gain
        if known is None:
            return HOPE * needed
        return known if are_dear else max(known, HOPE_AGAIN * needed)

    def weigh_answers(self, believed: float, needed: float, least: float) -> None:
        """Ask only sources that draft from text for a while, ``least`` drafts or more, where the others are believed to
        add less than is ``needed``."""
        if believed < needed:
            if self.answered_gain is None:
                self.shared.answered_gain = believed + UNTRIED * needed
            believed = HOPE_AGAIN * needed  # as they begin again
            self.draft_from_text(least)
        self.answered_gain = believed

    def draft_from_text(self, least: float = 0.0) -> None:
        """For a while, ``least`` drafts or more, twice as many every time."""
        self.wait, self.next_wait = max(self.next_wait, int(least)), min(2 * self.next_wait, LONGEST_WAIT)

    def count_answered(self, n: int) -> None:
        """All sources have drafted, and added ``n`` accepted nodes to what text alone would have given."""
        if self.answered_gain is not None:
            self.answered_gain += MEMORY * (n - self.answered_gain)
            self.n_full += 1
            self.n_answered += n

    def judge(self, outcome: Outcome, text_names: Collection[str]) -> None:
        """Hold what was claimed of a tree against what came true, and count what was gained by which sources.

        ``text_names`` are those of sources that draft from text.
        """
        tree = outcome.tree
        if self.claims and len(tree) - sum(tree.probe) == len(self.claims):
            self.calibrate(*claims_and_hits(outcome, self.claims))
        self.claims = []
        owners = [tree.source_names[tree.sources[node]] for node in outcome.accepted]
        self.n_accepted += len(owners)
        self.gain += MEMORY * (len(owners) - self.gain)
        self.next_pause = max(self.next_pause / 4.0 ** len(owners), min(FIRST_PAUSE, self.next_pause))
        if self.all_draft:
            self.count_answered(sum(name not in text_names for name in owners))
        if self.probing:
            probing = sum(name in self.probing for name in owners)
            self.probe_gain += MEMORY * (probing - self.probe_gain)
