"""What does a trained drafter's draft take, by its modules and in graphs, and is it the same draft?

Drafters with random weights in the geometry of 8B behind 2,048 tokens, 16 nodes, three rows read. By modules: torch's
operators one by one, as with ``numerics: fast``; in graphs: as with ``exact``. Drafts differ where near-ties are turned
by rounding; that has no bearing on texts.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import torch

from benchmarks.gpu.measuring.clock import waited
from benchmarks.gpu.measuring.drafting import KINDS, Drafting
from benchmarks.gpu.measuring.geometry import LLAMA_8B, sized
from benchmarks.gpu.measuring.rows import Row, Rows
from benchmarks.gpu.setting import Report, Setting
from engine.drafter.serving.forwards import MakeForwards, ModuleForwards

COLUMNS = {
    "drafter": "drafter",
    "sequences": "sequences",
    "modules_ms": "by modules, ms",
    "graphs_ms": "in graphs, ms",
    "ratio": "of modules",
    "different": "nodes different",
}
SEQUENCES, CONTEXT, CONTEXT_TINY = (1, 8, 32), 2048, 40


def run(setting: Setting) -> Report:
    """Both ways in turn, one memory after the other."""
    table = Rows(setting, "Drafts of trained drafters", COLUMNS)
    for kind in KINDS:
        for n_sequences in SEQUENCES[:1] if setting.tiny else SEQUENCES:
            table.attempt(f"{kind}, {n_sequences}", partial(_measure, setting, kind, n_sequences))
    return table.report() if setting.on_cuda else table.report("In graphs: not run on a CPU.")


@torch.inference_mode()
def _measure(setting: Setting, kind: str, n_sequences: int) -> list[Row]:
    ways: dict[str, MakeForwards] = {"modules": ModuleForwards}
    if setting.on_cuda and find_spec("triton") is not None:
        from engine.cuda.drafter import KernelForwards

        ways["graphs"] = KernelForwards
    geometry, context = sized(setting, LLAMA_8B), CONTEXT_TINY if setting.tiny else CONTEXT
    taken, drafted = dict[str, float](), dict[str, set[tuple[int, int, int, int]]]()
    for way, forwards in ways.items():
        drafting = Drafting(kind, geometry, setting.device, setting.dtype, n_sequences, context, forwards)
        drafted[way] = {
            (seq, *node)
            for seq, branch in enumerate(drafting.draft())
            for node in zip(range(len(branch.tokens)), branch.tokens, branch.parents or (), strict=True)
        }
        taken[way] = waited(setting, drafting.draft, 2 if setting.tiny else 30)
    graphs = taken.get("graphs")
    return [
        {
            "drafter": kind,
            "sequences": n_sequences,
            "modules_ms": taken["modules"] * 1e3,
            "graphs_ms": graphs and graphs * 1e3,
            "ratio": graphs and graphs / taken["modules"],
            "different": len(drafted["modules"] - drafted["graphs"]) if graphs else None,
        }
    ]
