"""Drafts of trained drafters, whose operations, copies and waits are counted."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from benchmarks.gpu.counting.counter import Counts, counted
from benchmarks.gpu.counting.pretended import pretended_cuda
from benchmarks.gpu.counting.steps import FAST, GRAPHS
from benchmarks.gpu.measuring.drafting import Drafting
from benchmarks.gpu.measuring.geometry import Geometry
from engine.drafter.serving.forwards import MakeForwards, ModuleForwards

CONTEXT = 100


def counted_draft(device: torch.device, kind: str, n_sequences: int, way: str = FAST) -> Counts:
    """What drafts of ``n_sequences`` together ask for, ``FAST`` or in ``GRAPHS``. On a CPU the device is a pretended
    one, where what graphs compute is not computed, so that drafts may differ in depth."""
    forwards: MakeForwards = ModuleForwards
    if way == GRAPHS:
        from engine.cuda.drafter import KernelForwards  # needs Triton

        forwards = KernelForwards
    geometry = Geometry("counted", 64, 96, 4, 8, 2, 16, 512)
    with pretended_cuda() if device.type == "cpu" else nullcontext(), torch.inference_mode():
        at = torch.device("cuda", 0) if device.type == "cpu" else device
        drafting = Drafting(kind, geometry, at, torch.bfloat16, n_sequences, CONTEXT, forwards)
        drafting.draft()
        with counted() as counts:
            drafting.draft()
    return counts
