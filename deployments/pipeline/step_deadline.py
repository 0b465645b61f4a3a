"""Notices a pipeline that hangs, by a step that is not answered in time, and reports it to the pipeline's owner.

A pipeline answers in order, so only the oldest step counts: from when it was sent, or from the previous answer if that
came later. A slow pipeline must not be replaced again and again: every hang report doubles the time of later steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from engine.step import Step
from engine.step_cost import StepCosts

TIMES_PREDICTED = 10.0  # a step may take so many times the time measured for steps of its size
WARM_UP_STEPS = 4  # answers after connecting until libraries, caches and kernels are warm
TIMES_COLD = 6.0  # how many times as long these may take
MAX_PATIENCE = 64.0  # how many times as long steps may take at most, after several hang reports
CALM_ANSWERS = 256  # answers in time, one after the other, until hang reports are forgotten
REPORT_S = 5.0  # seconds that a hang report may take

ReportHang = Callable[[str], Awaitable[None]]  # takes the reason

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _PendingStep:
    at: float  # seconds
    allowed: float  # seconds


class StepDeadlines:
    """Deadlines of the steps in flight on one pipeline; every ``now`` is of one monotonic clock, in seconds.

    Args:
        deadline: seconds any step may take.
        costs: measured step times, by which large steps get more time; None: not measured.
    """

    def __init__(self, deadline: float, costs: StepCosts | None) -> None:
        self._deadline = deadline
        self._costs = costs
        self._sent: dict[int, _PendingStep] = {}  # by step id, oldest first
        self._last_answer = 0.0
        self._n_answers = 0
        self._patience = 1.0
        self._n_calm = 0

    @property
    def cold(self) -> float:
        """Seconds that the first step of a pipeline may take."""
        return self._deadline * TIMES_COLD

    def restart(self, now: float) -> None:
        """Begin with a new pipeline: no step is in flight, and its first steps may be slow."""
        self._sent.clear()
        self._last_answer = now
        self._n_answers = 0

    def sent(self, step: Step, now: float) -> None:
        """A step was sent."""
        self._sent[step.step_id] = _PendingStep(now, self._allowed(step))

    def answered(self, step_id: int, now: float) -> None:
        """The answer to a step arrived."""
        sent = self._sent.pop(step_id, None)
        if sent is not None and self._patience > 1.0:
            self._calm_down(now - self._since(sent) <= sent.allowed)
        self._last_answer = now
        self._n_answers += 1

    def _calm_down(self, was_in_time: bool) -> None:
        self._n_calm = self._n_calm + 1 if was_in_time else 0
        if self._n_calm >= CALM_ANSWERS:
            self._patience = 1.0

    def excuse(self, seconds: float, now: float) -> None:
        """Give all steps ``seconds`` more: this process itself was blocked, and may have unread answers."""
        self._last_answer = min(now, self._last_answer + seconds)
        self._sent = {
            step_id: _PendingStep(min(now, sent.at + seconds), sent.allowed) for step_id, sent in self._sent.items()
        }

    def reported(self) -> None:
        """Double the time of later steps after an overdue step: else a slow stage would be replaced for ever."""
        self._patience = min(MAX_PATIENCE, 2.0 * self._patience)
        self._n_calm = 0

    def _since(self, sent: _PendingStep) -> float:
        return max(sent.at, self._last_answer)

    def overdue(self, now: float) -> str:
        """Why the pipeline counts as hung; "" while the oldest step is in time."""
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


async def send_hang_report(report: ReportHang | None, name: str, reason: str) -> None:
    """Report that the pipeline ``name`` hangs, so that its owner checks the stages now; never fails.

    Args:
        report: calls the owner; None: the pipeline has none, and nothing is done.
        name: for the log.
        reason: what was observed.
    """
    if report is None:
        return
    try:
        await asyncio.wait_for(report(reason), REPORT_S)
    except Exception as error:  # the owner may be lost too: then Serve is replacing it
        logger.warning("the hang of %s could not be reported to its owner: %s", name, error)
