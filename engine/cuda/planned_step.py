"""A step that an executor can run: packed, and planned."""

from __future__ import annotations

from dataclasses import dataclass

from engine.attention.packed_step import PackedStep
from engine.cuda.plan.plan import StepPlan
from engine.upload import Uploaded


@dataclass(slots=True, kw_only=True)
class PlannedStep(PackedStep):
    """A ``PackedStep`` whose rows attend as its plan says; it has no segments."""

    plan: StepPlan
    ints: Uploaded  # the plan's, int32
