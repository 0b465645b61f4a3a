"""What ``auto`` knows about a stream and its scope: what each arm gained there, and how far claims came true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.compiled import compiled_in_place
from engine.protocol import Outcome
from engine.tree import ROOT, TokenTree
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.mixing.merged import DEFAULT_CLAIM

CLASSES = 6  # of claims, in halves: above 1/2, above 1/4, .. the last one includes all below 1/32
OFF, TEXT, ALL = range(3)  # arms: decode plainly, sources that read only the text, all sources

OWN_FADE = 127 / 128  # of a stream's older steps per step: copied passages are some ten to a hundred steps apart
SCOPE_FADE = 1023 / 1024  # of a scope's older steps per step of a stream: 16 streams for 64 steps
PRIOR_STEPS = 16.0  # weight of the scope against a stream's own steps ...
PRIOR_TOKENS = (
    8.0  # ... of which it promises at most so many tokens: limits what a stream loses that is unlike the others
)
FIRST_LOAD = 8.0  # usual drafts: the first draft of a request from all sources touches memory that is in no cache
FIRST_TEXT = 0.1  # tokens a step that the text promises in a scope without experience: asking it costs less than that
STEPS_FADE = 7 / 8  # of older requests' steps per request of a scope
CLAIM_FADE = 0.97  # of older claims per step
PRIOR_CLAIMS = 4.0  # weight of the scope against a stream's own claims, in claimed tokens
LEAST_FACTOR, MOST_FACTOR = 0.02, 8.0  # limits of the correction of claims
EXPLORATION_STEPS, EXPLORATION_PERIOD = 8, 128  # of each period of steps, the first ones make the opposite choice


@compiled_in_place
def class_of(claim: float) -> int:
    """Return the class of a claim."""
    found = 0
    while claim <= 0.5 and found < CLASSES - 1:
        claim *= 2.0
        found += 1
    return found


@dataclass(slots=True)
class Mean:
    """A mean of values of which older ones count less."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, total: float, fade: float, weight: float = 1.0) -> None:
        """Add ``weight`` values that are ``total`` together."""
        self.total = self.total * fade + total
        self.weight = self.weight * fade + weight

    def fade(self, share: float) -> None:
        self.total *= share
        self.weight *= share

    def value(self, prior: float, weight: float) -> float:
        """Return the mean, with ``weight`` values of ``prior`` before the others."""
        return (prior * weight + self.total) / (weight + self.weight)


class Calibration:
    """Claimed and true acceptances by class of the claim, ``[CLASSES]`` each.

    A claim is the probability of a node once its parent is accepted; it is compared when the parent was accepted.
    """

    __slots__ = ("claimed", "hits")

    def __init__(self) -> None:
        self.claimed, self.hits = [0.0] * CLASSES, [0.0] * CLASSES

    def add(self, claims: Sequence[float], hits: Sequence[float]) -> None:
        """Add the claims of one step, and those of the nodes that were accepted."""
        self.claimed = [CLAIM_FADE * before for before in self.claimed]
        self.hits = [CLAIM_FADE * before for before in self.hits]
        for claim in claims:
            self.claimed[class_of(claim)] += claim
        for claim in hits:
            self.hits[class_of(claim)] += 1.0

    def factors(self, scope: Calibration) -> list[float]:
        """Return hits per claimed hit by class; ``scope`` counts as ``PRIOR_CLAIMS`` claims."""
        found = []
        for claimed, hits, all_claimed, all_hits in zip(
            self.claimed, self.hits, scope.claimed, scope.hits, strict=True
        ):
            prior = PRIOR_CLAIMS * (1.0 + all_hits) / (1.0 + all_claimed)
            found.append(min(max((prior + hits) / (PRIOR_CLAIMS + claimed), LEAST_FACTOR), MOST_FACTOR))
        return found


class ScopeState:
    """Experience of all requests of a scope, by arm."""

    __slots__ = ("calibrations", "drafter_speeds", "gains", "n_all", "n_live", "steps")

    def __init__(self) -> None:
        self.gains = [Mean(), Mean(), Mean()]  # tokens per step, as those of streams
        self.calibrations = [Calibration(), Calibration(), Calibration()]
        self.drafter_speeds = [Mean(), Mean()]  # of all sources without and with the target's drafter, see `count_all`
        self.n_all = 0  # steps that drafted from all sources
        self.steps = Mean()  # of a request
        self.n_live = 0  # requests

    def gain(self, arm: int) -> float:
        """Return the tokens per step that an arm promises to a new request."""
        prior = FIRST_TEXT if arm == TEXT else 0.0
        return self.gains[arm].value(prior, 1.0)

    def count_all(self, n_tokens: int, n_plain: float, has_drafter: bool) -> None:
        """Count a step of all sources, with or without a draft of the target's drafter.

        It gave ``n_tokens`` in the time of ``n_plain`` plain steps. Speeds are compared, not gains: the faster the
        other sources are, the more a drafter's time costs.
        """
        self.n_all += 1
        for mean in self.drafter_speeds:
            mean.fade(SCOPE_FADE)
        self.drafter_speeds[has_drafter].add(n_tokens, 1.0, n_plain)

    @property
    def prefers_drafter(self) -> bool:
        """Whether steps with the target's drafter were faster than without."""
        without, with_drafter = self.drafter_speeds
        return with_drafter.weight > 0.0 and with_drafter.value(0.0, 1e-9) > without.value(0.0, 1e-9)

    @property
    def should_use_drafter(self) -> bool:
        """Whether the target's drafter drafts next: if it is preferred, or in exploration steps if it is not.

        At first, four steps without the drafter alternate with four steps with it, so one trial measures both.
        """
        if self.n_all < 2 * EXPLORATION_STEPS:
            return self.n_all % EXPLORATION_STEPS >= EXPLORATION_STEPS // 2
        return self.prefers_drafter != (self.n_all % EXPLORATION_PERIOD < EXPLORATION_STEPS)


class DraftRecord(NamedTuple):
    """A draft, until its answer is counted."""

    arm: int
    cost: float  # seconds by which its nodes and read-backs delay the step


@dataclass(slots=True)
class StreamState:
    """One request. Gains are tokens per step: accepted nodes minus what nodes and read-backs cost, in plain tokens."""

    scope: ScopeState
    own: Sequence[FaultIsolated]  # sources that serve this request and not all
    arm: int = OFF  # of the next draft
    draft: DraftRecord | None = None  # the last one; None: no source was asked
    next_best: int = OFF  # arm if too few streams share the fixed cost of ``arm``
    surplus: float = 0.0  # tokens per step that ``arm`` gains above ``next_best``
    draft_seconds: float | None = None  # of the target's drafter for the next draft; None: it made none
    drafter_caught_up: bool = False  # whether that draft also read rows that had waited
    load: float = FIRST_LOAD  # host work of its next draft from all sources, in usual drafts
    rests: bool = False  # whether the speculator is not asked until the request wakes
    trial: int = 0  # steps left of a trial of ``arm``
    last_trial: int = -1  # number of steps of the lane when this stream last had the arm that trials try; -1: never
    n_looked: int = 0  # tokens of the context up to which the text was looked back at
    n_steps: int = 0
    recent_nodes: float = 16.0  # nodes that were worth it; rises at once and falls slowly
    has_begun_all: bool = False  # whether all sources know the request
    n_waiting: int = 0  # tokens of the prompt while it is unanswered, then 0
    prompt_outcomes: list[Outcome] = field(default_factory=list)  # prompt chunks that the sources have not observed
    gains: list[Mean] = field(default_factory=lambda: [Mean(), Mean(), Mean()])  # by arm
    calibrations: list[Calibration] = field(default_factory=lambda: [Calibration(), Calibration(), Calibration()])
    factors: list[float] = field(default_factory=lambda: [1.0] * CLASSES)  # of claims of the next draft

    def gain(self, arm: int) -> float:
        """Return the tokens per step that are expected of an arm."""
        prior = self.scope.gain(arm)
        return self.gains[arm].value(prior, PRIOR_STEPS if prior * PRIOR_STEPS < PRIOR_TOKENS else PRIOR_TOKENS / prior)

    def count(self, arm: int, gain: float, n_steps: float = 1.0) -> None:
        """Count steps of an arm that gained so many tokens together, net of nodes and read-backs."""
        self.gains[arm].add(gain, OWN_FADE**n_steps, n_steps)
        self.scope.gains[arm].add(gain, SCOPE_FADE**n_steps, n_steps)

    def calibrate(self, arm: int, tree: TokenTree, accepted: Sequence[int]) -> None:
        """Compare what the nodes of a draft claimed with what was accepted."""
        claims = [DEFAULT_CLAIM] * len(tree) if tree.scores is None else tree.scores
        tried = [claims[node] for above in (ROOT, *accepted) for node in tree.children[above + 1]]
        tried = [claim if 0.0 <= claim <= 1.0 else DEFAULT_CLAIM for claim in tried]  # NaN: none was made
        hits = [claims[node] if 0.0 <= claims[node] <= 1.0 else DEFAULT_CLAIM for node in accepted]
        for calibrations in (self.calibrations, self.scope.calibrations):
            calibrations[arm].add(tried, hits)

    def choose(self, arms: Sequence[int], costs: Sequence[float]) -> None:
        """Choose the arm of the next draft, of ``arms`` without OFF; a trial keeps its own.

        ``costs`` are of the host's work by arm, in plain tokens per step.
        """
        if not self.trial:
            self.arm, self.next_best, self.surplus = OFF, OFF, 0.0
            most = 0.0
            for arm in arms:
                net = self.gain(arm) - costs[arm]
                if net > most:
                    self.next_best, self.surplus, self.arm, most = self.arm, net - most, arm, net

    def take_next_best(self, costs: Sequence[float]) -> None:
        """Draft by the next best arm, because the best one is not worth what it adds to a step."""
        self.arm, self.next_best = self.next_best, OFF
        self.surplus = self.gain(self.arm) - costs[self.arm] if self.arm else 0.0

    def try_arm(self, arm: int, n_steps: int, now: int) -> None:
        """Draft by an arm for ``n_steps`` steps, whatever it is expected to gain, and believe what it claims."""
        self.arm, self.trial, self.last_trial = arm, n_steps, now
        self.set_factors()

    def set_factors(self) -> None:
        """Calibrate the next draft by all drafts of its arm."""
        if self.arm:
            found = self.calibrations[self.arm].factors(self.scope.calibrations[self.arm])
            self.factors = [max(factor, 1.0) for factor in found] if self.trial else found
