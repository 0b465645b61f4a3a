"""Notices a pipeline that hangs: a step whose answer does not come in time. Knows times and sizes of steps, no sockets.

A pipeline answers in order, so only the oldest step counts, from when it was sent or from the answer before it.

What is merely slow must not be replaced for ever: every suspicion doubles the time that steps have from then on.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.step import Step
from engine.step_cost import StepCosts

TIMES_PREDICTED = 10.0  # a step may take so many times what was measured for its like
WARM_UP_STEPS = 4  # answers after connecting until libraries, caches and kernels are as they will stay
TIMES_COLD = 6.0  # how much longer these may take
MOST_PATIENCE = 64.0  # how much longer steps may take, once their like cost a pipeline again and again
CALM_ANSWERS = 256  # in time, one after the other, until such steps are forgotten


@dataclass(frozen=True, slots=True)
class _Sent:
    at: float  # seconds
    allowed: float  # seconds


class StepWatch:
    """Deadlines of the steps in flight on one pipeline; every ``now`` is of one monotonic clock, in seconds.

    Args:
        deadline: seconds any step may take.
        costs: measured step times: a step that is large takes longer; None: not known.
    """

    def __init__(self, deadline: float, costs: StepCosts | None) -> None:
        self._deadline = deadline
        self._costs = costs
        self._sent: dict[int, _Sent] = {}  # in order
        self._last_news = 0.0
        self._n_answers = 0
        self._patience = 1.0
        self._n_calm = 0

    @property
    def cold(self) -> float:
        """Seconds that the first step of a pipeline may take."""
        return self._deadline * TIMES_COLD

    def restart(self, now: float) -> None:
        """A fresh pipeline: nothing is in flight, and its first steps may be slow."""
        self._sent.clear()
        self._last_news = now
        self._n_answers = 0

    def sent(self, step: Step, now: float) -> None:
        """A step is on its way."""
        self._sent[step.step_id] = _Sent(now, self._allowed(step))

    def answered(self, step_id: int, now: float) -> None:
        """Its answer is there."""
        sent = self._sent.pop(step_id, None)
        if sent is not None and self._patience > 1.0:
            self._calm_down(now - self._since(sent) <= sent.allowed)
        self._last_news = now
        self._n_answers += 1

    def _calm_down(self, was_in_time: bool) -> None:
        self._n_calm = self._n_calm + 1 if was_in_time else 0
        if self._n_calm >= CALM_ANSWERS:
            self._patience = 1.0

    def excuse(self, seconds: float, now: float) -> None:
        """The watcher itself was held up so long: answers may be waiting that it has not read."""
        self._last_news = min(now, self._last_news + seconds)
        self._sent = {step_id: _Sent(min(now, sent.at + seconds), sent.allowed) for step_id, sent in self._sent.items()}

    def suspected(self) -> None:
        """An overdue step cost the pipeline; the next one has longer, lest a slow stage be replaced for ever."""
        self._patience = min(MOST_PATIENCE, 2.0 * self._patience)
        self._n_calm = 0

    def _since(self, sent: _Sent) -> float:
        return max(sent.at, self._last_news)

    def overdue(self, now: float) -> str:
        """What is wrong with the oldest step; "" while nothing is."""
        for step_id, sent in self._sent.items():
            waited = now - self._since(sent)
            allowed = sent.allowed * (TIMES_COLD if self._n_answers < WARM_UP_STEPS else 1.0) * self._patience
            if waited > allowed:
                return f"step {step_id} was not answered within {allowed:.1f} s"
            break
        return ""

    def _allowed(self, step: Step) -> float:
        if self._costs is None or not step.work:
            return self._deadline
        rows = sum(len(work.tokens) + (0 if work.tree is None else len(work.tree)) for work in step.work)
        predicted = float(self._costs.seconds(len(step.work), [rows])[0])
        return max(self._deadline, TIMES_PREDICTED * predicted)
