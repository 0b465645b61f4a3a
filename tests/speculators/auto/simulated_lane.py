"""A lane in simulated time: a test says how often sources are right, what steps take, and when streams come and go."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.composer import compose
from engine.protocol import Branch, Needs, Outcome, RequestView, StepTime
from engine.top_ids import NO_TOP_IDS
from engine.tree import EMPTY_TREE
from tests.speculators.drafts import view

RIGHT, WRONG = 1, 2  # every text is a run of the first token
HOST = 1.5e-5  # seconds of host work per stream and step, whether or not anything is drafted


class Clock:
    """The time of the host and of the target, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Source:
    """Drafts chains of tokens that are right with probability ``accuracy(request)`` each; asking takes ``seconds``."""

    name: str
    clock: Clock
    accuracy: Callable[[RequestView], float]
    seconds: float
    claim: float = 0.6
    length: int = 8
    needs: Needs = field(default_factory=Needs)
    catches_up = True
    chance: random.Random = field(default_factory=lambda: random.Random(5))
    n_asked: int = 0

    def begin(self, request: RequestView) -> None: ...

    def end(self, request: RequestView) -> None: ...

    def observe(self, request: RequestView, outcome: Outcome) -> None: ...

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        self.n_asked += 1
        self.clock.now += self.seconds
        p = self.accuracy(request)
        tokens = [RIGHT if self.chance.random() < p else WRONG for _ in range(min(self.length, budget))]
        return [Branch(tokens, self.name, scores=[self.claim] * len(tokens))] if p else []


class GuessingTextSource(Source):
    def look_back(self, views: list[RequestView], distances: list[int]) -> list[tuple[int, int]]:
        found = []
        for one, distance in zip(views, distances, strict=True):
            p, n = self.accuracy(one), 0
            while n < distance and self.chance.random() < p:
                n += 1
            found.append((distance if p else 0, n))
        return found


class SimulatedLane:
    """Streams that decode in one step after another.

    Args:
        auto: controller, whose clock is ``clock``.
        seconds: of a step: takes the clock, sequences, nodes, and rows that are read back.
        noise: of a step's time, relative standard deviation.
        drafter: chance that a token of the target's drafter is right, and seconds of a draft; None: there is none.
    """

    def __init__(
        self,
        auto: Any,
        clock: Clock,
        seconds: Callable[[float, int, int, int], float],
        noise: float = 0.0,
        drafter: tuple[float, float] | None = None,
    ) -> None:
        self._drafter, self.n_drafted = drafter, 0
        self.auto, self.clock, self._seconds, self._noise = auto, clock, seconds, noise
        self._chance = random.Random(1)
        self._streams: list[RequestView] = []
        self._resting: set[int] = set()
        self._drafts: dict[int, Any] = {}
        self._next = 0
        self._pending: tuple[list[tuple[RequestView, Outcome]], float] | None = None  # for ``settle``
        self.plain = self.taken = 0.0  # seconds: what the same tokens would have taken plainly, and what they took
        self.overestimated = 0.0  # seconds by which the controller took plain steps for longer than they were
        self.n_steps = 0
        self.tiers: dict[str, int] = {}

    def set_streams(self, n: int) -> None:
        while len(self._streams) > n:
            stream = self._streams.pop()
            self._drafts.pop(stream.request_id, None)
            self._resting.discard(stream.request_id)
            self.auto.end(stream)
        joined = []
        while len(self._streams) < n:
            stream = view([3, 4, 5], self._next, max_tokens=4096)
            self._next += 1
            self.auto.begin(stream)
            self._streams.append(stream)
            joined.append(stream)
        if joined:  # as after the prompt
            if self._pending is not None:
                self._settle()
            for stream in joined:
                stream.context.extend([RIGHT])
            self._round(joined, [Outcome([RIGHT], EMPTY_TREE, n_read=3) for _ in joined], [])

    def replace_stream(self) -> None:
        """The oldest stream ends, and a new one joins."""
        n = len(self._streams)
        self._streams = self._streams[1:] + self._streams[:1]
        self.set_streams(n - 1)
        self.set_streams(n)

    def _round(
        self, asked: list[RequestView], outcomes: list[Outcome], resting: list[tuple[RequestView, Outcome]]
    ) -> None:
        began = self.clock.now
        self.clock.now += HOST * len(self._streams)
        self.auto.observe_batch(asked, outcomes)
        drafts = self.auto.propose_batch(asked, [16] * len(asked)) if asked else []
        spent = self.clock.now - began
        for stream, draft in zip(asked, drafts, strict=True):
            self._drafts[stream.request_id] = draft
            if draft.rests:
                self._resting.add(stream.request_id)
        self._pending = (resting, spent)

    def _settle(self) -> None:
        (resting, spent), self._pending = self._pending or ([], 0.0), None
        resting = [(stream, outcome) for stream, outcome in resting if stream in self._streams]
        now = self.clock.now
        for stream, outcome in resting:
            stream.context.extend(outcome.tokens)
        woken = self.auto.settle([stream for stream, _ in resting], [outcome for _, outcome in resting], spent)
        self._resting -= set(woken)
        self.clock.now = now  # the target computes meanwhile

    def step(self) -> None:
        began = self.clock.now
        trees = []
        n_read = 0
        for stream in self._streams:
            draft = None if stream.request_id in self._resting else self._drafts.get(stream.request_id)
            tree = compose(draft or (), 16)
            reads = bool(draft is not None and draft.decision and draft.decision.reads_back)
            decision = "off" if draft is None or draft.decision is None else draft.decision.tier
            self.tiers[decision] = self.tiers.get(decision, 0) + 1
            trees.append((tree, reads))
            n_read += (1 + len(tree)) * reads
        self._settle()
        n, n_nodes = len(self._streams), sum(len(tree) for tree, _ in trees)
        plain = self._seconds(began, n, 0, 0)
        cycle = plain + HOST * n
        seconds = self._seconds(began, n, n_nodes, n_read) * max(0.2, self._chance.gauss(1.0, self._noise))
        self.clock.now += seconds
        context = sum(len(stream.context) for stream in self._streams) / n
        branches = [self._draft(stream) for stream in self._streams]
        drafter = (0.0 if self._drafter is None else self._drafter[1]) * sum(branch is not None for branch in branches)
        self.clock.now += drafter
        step = StepTime(seconds, n, n + n_nodes, context, n_read, drafter)
        asked, outcomes, resting, n_tokens = [], [], [], 0
        for stream, (tree, reads), branch in zip(self._streams, trees, branches, strict=True):
            accepted: list[int] = []
            while right := [
                node for node in tree.children[accepted[-1] + 1 if accepted else 0] if tree.tokens[node] == RIGHT
            ]:
                accepted.append(right[0])
            outcome = Outcome(
                [RIGHT] * (1 + len(accepted)),
                tree,
                accepted,
                step=step,
                draft=branch,
                draft_seconds=0.0 if branch is None or self._drafter is None else self._drafter[1],
                top_ids=_Read(1 + len(tree)) if reads else NO_TOP_IDS,
            )
            n_tokens += len(outcome.tokens)
            if stream.request_id in self._resting:
                resting.append((stream, outcome))
            else:
                stream.context.extend(outcome.tokens)
                asked.append(stream)
                outcomes.append(outcome)
        self._round(asked, outcomes, resting)
        if n_nodes or n_read:
            known = self.auto._lane.prices.of(n, context, 0).plain
            self.overestimated += n_tokens / n * (known - plain)
        self.plain += n_tokens / n * cycle
        self.taken += self.clock.now - began
        self.n_steps += 1

    def _draft(self, stream: RequestView) -> Branch | None:
        last = None if stream.request_id in self._resting else self._drafts.get(stream.request_id)
        if self._drafter is None or last is None or not last.drafts_next:
            return None
        self.n_drafted += 1
        tokens = [RIGHT if self._chance.random() < self._drafter[0] else WRONG for _ in range(5)]
        return Branch(tokens, "eagle", scores=[0.6] * 5)

    @property
    def price_error(self) -> float:
        """By how much plain steps seemed longer than they were, as a share of the time."""
        return self.overestimated / self.taken

    @property
    def ratio(self) -> float:
        """Speed over plain decoding."""
        return self.plain / self.taken


class _Read(dict[int, list[int]]):
    """As many rows as were read back."""

    def __init__(self, n: int) -> None:
        super().__init__({node: [] for node in range(-1, n - 1)})
