"""Statistics of ``auto`` about requests and scopes, which decide when a request asks its sources again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from engine.protocol import Branch, Outcome
from speculators.auto.calibration import DepthCalibration, claims_and_hits
from speculators.auto.prices import Price
from speculators.mixing.estimates import FIRST_CLAIM
from speculators.mixing.fault_isolation import FaultIsolated

FIRST_PAUSE = 0.25  # steps; it doubles with every failure, so that the first two cause no pause
FIRST_WAIT = 16  # drafts from text alone until all sources are tried again; it doubles, too ...
LONGEST_WAIT = 512  # ... up to this
INITIAL_GAIN_PRIOR = 2.0  # assumed gain of all sources before any is known, as a multiple of the gain they need
RETRY_GAIN_PRIOR = 1.25  # the same for a retry
EXPLORATION_BONUS = 1 / 32  # of the needed gain, by which a scope's estimate grows with every request without a try
EXPENSIVE_TIER_SHARE = 0.25  # of a request's share of a step: all sources are expensive if they take this much longer
GAIN_RATE = 0.1  # weight of the newest step in the gain of a request
SCOPE_RATE = 1 / 8  # weight of the newest request in the gain of a scope
MOST_UNREAD = 31  # requests in a row whose prompt is not read back
SUCCESS_RATE = 1 / 12  # weight of the newest draft in how often drafts of a scope are worth it
LEAST_SUCCESS = 1 / 256  # limits the first pause of requests of a scope
PROBE_RECOVERY = 1 / 256  # of the initial gain of probes, that a step without probes restores


class ScopeState:
    """Statistics of all requests of a scope."""

    __slots__ = ("answered_gain", "calibrations", "gain", "n_ended", "n_unread", "steps", "success")

    def __init__(self) -> None:
        self.calibrations = (DepthCalibration(), DepthCalibration())  # of the text tier, and of all sources
        self.gain = FIRST_CLAIM  # accepted nodes per step of a request
        self.answered_gain: float | None = None  # nodes that all sources added per draft; None: not known
        self.steps: float | None = None  # of a request
        self.n_ended = 0  # requests
        self.n_unread = 0  # requests since one whose prompt was read back
        self.success: dict[int, float] = {}  # bucket of batches -> share of recent drafts that were worth it

    def count(self, bucket: int, is_worth_it: bool) -> None:
        """Count a draft of a request in a batch of ``bucket``."""
        before = self.success.get(bucket, 1.0)
        self.success[bucket] = before + SUCCESS_RATE * (is_worth_it - before)

    def expected_gain(self, max_tokens: int) -> float:
        """Return the expected number of accepted nodes of a request that may write ``max_tokens``."""
        return self.gain * (max_tokens if self.steps is None else min(self.steps, max_tokens))

    def reads_prompt(self, is_worth_it: bool) -> bool:
        """Return whether to read the next request's prompt back: if it is worth it, and sometimes to find out."""
        self.n_unread = 0 if is_worth_it or self.n_unread == MOST_UNREAD else self.n_unread + 1
        return self.n_unread == 0

    def end(self, state: RequestState) -> None:
        """Add the statistics of a request that ended."""
        if state.n_steps:
            self.n_ended += 1
            weight = max(SCOPE_RATE, 1.0 / (1 + self.n_ended))  # the initial values weigh as much as one request
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
    all_draft: bool = True  # whether all sources were asked for its last draft
    pause: int = 0  # steps until the sources are asked again
    next_pause: float = 0.0  # after the next failure; 0: none yet
    until_look: int = 0  # steps of a pause until the next look back
    next_look: float = 0.0  # steps between two looks back
    n_resting: int = 0  # remaining steps of its rest
    missed: list[int] = field(default_factory=list)  # tokens of its rest, for the sources
    observes_next: bool = True  # whether sources that could catch up observe the next outcome
    n_observed: int = 0  # tokens of the text that all sources have observed
    n_steps: int = 0
    n_accepted: int = 0  # nodes
    claims: list[float] = field(default_factory=list)  # of the nodes of its current tree, in order
    recent_nodes: float = 64.0  # nodes that were worth it; rises at once and falls slowly
    gain: float = 1.0  # accepted nodes per step with a draft
    answered_gain: float | None = None  # expected part of them that all sources add to text; None: not tried yet
    n_full: int = 0  # drafts of all sources
    n_answered: int = 0  # nodes that they added: from read-backs, probes and drafters
    wait: int = 0  # drafts from text alone until all sources are tried again
    next_wait: int = FIRST_WAIT
    probe_gain: float = FIRST_CLAIM  # accepted nodes per step of sources that probe
    probing: frozenset[str] = frozenset()  # sources that probed

    @property
    def factors(self) -> list[float]:
        """Factors of claims, by depth."""
        return self.calibrations[self.all_draft].factors(self.shared.calibrations[self.all_draft])

    def calibrate(self, claimed: Sequence[float], hits: Sequence[float]) -> None:
        """Add claims and acceptances by depth to the calibrations of the request's tier, its own and its scope's."""
        for calibrations in (self.shared.calibrations, self.calibrations):
            calibrations[self.all_draft].add(claimed, hits)

    def fail(self, bucket: int, longest: float) -> None:
        """Pause twice as long as the last time, up to ``longest`` steps; first by the scope's success in ``bucket``."""
        if not self.next_pause:
            self.next_pause = min(FIRST_PAUSE / max(self.shared.success.get(bucket, 1.0), LEAST_SUCCESS), longest)
        self.pause = int(self.next_pause)
        self.next_pause = min(2.0 * self.next_pause, longest)

    def skip_steps(self) -> int:
        """Return, and count as passed, the steps of the pause until the next draft or look back."""
        steps = max(min(self.pause, self.until_look - 1), 0)
        self.pause -= steps
        self.until_look -= steps
        return steps

    def count_probes(self, probes: Sequence[Branch]) -> None:
        """Count the probes of a draft; the expected gain recovers in steps that can afford none."""
        self.probing |= {probe.source for probe in probes}
        if not probes:
            self.probe_gain += PROBE_RECOVERY * (1 + self.pause) * (FIRST_CLAIM - self.probe_gain)

    def needed_gain(self, price: Price, more: float) -> float:
        """Return what all sources must add to a draft to be worth ``more`` seconds of drafting and the read-backs."""
        reading = price.factor * (price.reading / price.batch + price.read_row * (1 + len(self.claims)))
        token = price.share / (1.0 + self.gain)  # seconds that one more token saves
        return (reading + max(more, 0.0)) / token

    def expected_gain(self, needed: float, is_expensive: bool) -> float:
        """Return what all sources are expected to add; before the first try at least enough for one, if it is cheap."""
        if self.answered_gain is not None:
            return self.answered_gain
        known = self.shared.answered_gain
        if known is None:
            return INITIAL_GAIN_PRIOR * needed
        return known if is_expensive else max(known, RETRY_GAIN_PRIOR * needed)

    def choose_tier(self, expected: float, needed: float, least: float) -> None:
        """Draft from text for ``least`` drafts or more if all sources are expected to add less than ``needed``."""
        if expected < needed:
            if self.answered_gain is None:
                self.shared.answered_gain = expected + EXPLORATION_BONUS * needed
            expected = RETRY_GAIN_PRIOR * needed  # for the retry
            self.draft_from_text(least)
        self.answered_gain = expected

    def draft_from_text(self, least: float = 0.0) -> None:
        """Draft from text for ``least`` drafts or more, twice as many every time."""
        self.wait, self.next_wait = max(self.next_wait, int(least)), min(2 * self.next_wait, LONGEST_WAIT)

    def count_answered(self, n: int) -> None:
        """Count a draft of all sources that added ``n`` accepted nodes to those of the text."""
        if self.answered_gain is not None:
            self.answered_gain += GAIN_RATE * (n - self.answered_gain)
            self.n_full += 1
            self.n_answered += n

    def observe(self, outcome: Outcome, text_names: Collection[str]) -> None:
        """Compare the claims of a tree with what was accepted; ``text_names`` are the sources that draft from text."""
        tree, accepted = outcome.tree, outcome.accepted
        if self.claims and len(tree) - sum(tree.probe) == len(self.claims):
            self.calibrate(*claims_and_hits(tree.children, self.claims, accepted, len(accepted) + 1))
        self.claims = []
        owners = [tree.source_names[tree.sources[node]] for node in accepted]
        self.n_accepted += len(owners)
        self.gain += GAIN_RATE * (len(owners) - self.gain)
        self.next_pause = max(self.next_pause / 4.0 ** len(owners), min(FIRST_PAUSE, self.next_pause))
        if self.all_draft:
            self.count_answered(sum(name not in text_names for name in owners))
        if self.probing:
            probing = sum(name in self.probing for name in owners)
            self.probe_gain += GAIN_RATE * (probing - self.probe_gain)
