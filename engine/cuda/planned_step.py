"""A step that an executor can run."""

from __future__ import annotations

from dataclasses import dataclass

from engine.attention.packed_step import PackedStep
from engine.cuda.plan.plan import StepPlan
from engine.upload import Uploaded


@dataclass(slots=True, kw_only=True)
class PlannedStep(PackedStep):
    """A ``PackedStep`` without segments, whose plan says what its rows attend to."""

    plan: StepPlan
    ints: Uploaded  # int32, the array of the plan
