"""Simulated machines: how long a step takes on each, and the step times that a server would have measured there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from engine.protocol import Needs
from engine.simulated.profile import PROFILES, PipelineProfile
from engine.stage.packing import row_tokens
from engine.step import Step, Work
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo
from engine.target_model.step_timing import measurement

TRIP_S = 1e-4  # seconds from the router to the first stage and from the last one back, through sockets


@dataclass(frozen=True, slots=True)
class PipelineMachine:
    """A pipeline, and the time that reading ids back adds to its last stage.

    A root or node has logits anyway, and a pass over them is added. Most rows of a prompt need the head, too.
    """

    profile: PipelineProfile
    node_read_s: float = 0.0  # seconds per root or node whose best ids are read back
    prompt_read_s: float = 0.0  # the same of a prompt's row


# A row's 128k logits in fp32 are passed over four times (log-softmax, selection) at 4.3 TB/s, two at an H100's 2.7. The
# head is 1.05 GFLOP a row (8B) and 2.1 (70B).
MACHINES = MappingProxyType(
    {
        "8b-h200": PipelineMachine(PROFILES["8b-h200"], 0.5e-6, 1.8e-6),
        "70b-h100x4": PipelineMachine(PROFILES["70b-h100x4"], 0.8e-6, 5.0e-6),
    }
)
"""Machines by name."""


class VirtualStages:
    """Computes when the steps of one pipeline end, on a clock that its owner advances.

    Args:
        machine: that has the stages.
    """

    def __init__(self, machine: PipelineMachine) -> None:
        self._machine = machine
        self._free = [0.0] * machine.profile.stages  # when each stage is idle again
        self._needs: dict[int, Needs] = {}  # of the sequences that the last stage knows

    def seconds(self, step: Step) -> tuple[float, ...]:
        """Return the seconds of every stage for a step, first to last."""
        for seq in step.ends:
            self._needs.pop(seq, None)
        self._needs |= {start.seq: start.needs for start in step.starts}
        profile = self._machine.profile
        inner = [profile.work_seconds(step.work, is_last=False)] * (profile.stages - 1)
        last = profile.work_seconds(step.work, is_last=True) + sum(map(self._reading, step.work))
        return (*inner, last)

    def ends(self, step: Step, sent: float, seconds: tuple[float, ...]) -> float:
        """Return when the answer to a step that was sent at ``sent`` arrives; stages work in the order of arrival."""
        profile = self._machine.profile
        moment = sent + TRIP_S / 2
        hop = profile.wire_seconds(sum(len(row_tokens(work)) for work in step.work)) + profile.link_latency_s
        for stage, taken in enumerate(seconds):
            moment = max(moment + (hop if stage else 0.0), self._free[stage]) + taken
            self._free[stage] = moment
        return moment + TRIP_S / 2

    def _reading(self, work: Work) -> float:
        """Return the seconds that reading ids back adds."""
        needs = self._needs.get(work.seq, Needs())
        if work.tree is None:
            return self._machine.prompt_read_s * len(work.tokens) if needs.prompt_top_k else 0.0
        if not work.reads_back:
            return 0.0
        rows = 1 + len(work.tree) if needs.node_top_k else len(work.tree.probe_ends) if needs.probe_top_k else 0
        return self._machine.node_read_s * rows


def simulated_costs(machine: PipelineMachine, info: TargetInfo) -> StepCosts:
    """Return the step times that a server on this machine would measure at its start."""
    stages = VirtualStages(machine)
    now = 0.0

    def taken(step: Step) -> float:
        nonlocal now
        began, now = now, stages.ends(step, now, stages.seconds(step))
        return now - began

    return costs_by(taken, info)


def costs_by(seconds: Callable[[Step], float], info: TargetInfo) -> StepCosts:
    """Return step times as a server measures them; ``seconds`` gives the time of a step."""
    steps = measurement(info)
    step = next(steps)
    while True:
        try:
            step = steps.send(seconds(step))
        except StopIteration as done:
            costs: StepCosts = done.value
            return costs
