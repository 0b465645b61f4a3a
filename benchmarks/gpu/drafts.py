"""How long is a trained drafter's draft in graphs and by its modules, and is it the same draft?

Drafters have random weights in the geometry of 8B, 2,048 tokens of context, three committed rows, and draft 16 nodes.
Drafts differ where rounding decides between nearly equal candidates; texts do not depend on that. Graphs need a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch

from benchmarks.gpu.measuring.clock import measure_latency
from benchmarks.gpu.measuring.models import BLOCK, LLAMA_8B, SPREAD, Geometry, shrink
from benchmarks.gpu.setting import GpuSetting, MeasurementPart, Row, attempt
from engine.cuda.drafter import KernelForwards
from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import new_network
from engine.drafter.serving.forwards import MakeForwards, ModuleForwards
from engine.drafter.serving.rows import CommittedTokens
from engine.drafter.serving.runtime import DrafterPlacement, DraftRuntime
from engine.drafter.settings import DrafterSettings
from engine.drafter.spec import DrafterSpec, LayerShape
from engine.drafter.trees.draft_tree import DraftRequest
from engine.kv.arena import BlockTable
from engine.protocol import Branch
from engine.sampling.params import SamplingParams

KINDS = ("eagle 3", "p-eagle", "dflash")
SEQUENCES, CONTEXT, CONTEXT_TINY = (1, 8, 32), 2048, 40
N_NEW, N_NODES = 3, 16  # rows that a step commits; nodes of a draft
SETTINGS = DrafterSettings("", depth=6, beam=8)


def make_spec(kind: str, geometry: Geometry) -> DrafterSpec:
    """Return a drafter as they are published: one layer, for dflash five; three taps; the target's embedding."""
    sizes = geometry.intermediate, geometry.n_heads, geometry.n_kv_heads, geometry.head_dim
    layers = LayerShape(5 if kind == "dflash" else 1, geometry.hidden, *sizes, 5e5, 1e-5, qk_norm=kind == "dflash")
    taps = (0, geometry.n_layers // 2, geometry.n_layers - 1)
    common = geometry.hidden, geometry.vocab, geometry.vocab, taps, layers
    if kind == "eagle 3":
        return DrafterSpec("eagle", 3, *common)
    if kind == "p-eagle":
        return DrafterSpec("p-eagle", 1, *common, n_drafts=7, mask_token_id=1, has_mask_state=True)
    return DrafterSpec("dflash", 1, *common, n_drafts=15, mask_token_id=1)


class DraftingSequences:
    """Sequences that draft together, always from the same place."""

    def __init__(self, setting: GpuSetting, kind: str, n_sequences: int, forwards: MakeForwards) -> None:
        geometry, random = shrink(setting, LLAMA_8B), torch.Generator(setting.device).manual_seed(0)
        self._context, self._sequences = CONTEXT_TINY if setting.is_tiny else CONTEXT, range(n_sequences)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random, device=setting.device).mul_(SPREAD).to(setting.dtype)

        embedding, spec = normal(geometry.vocab, geometry.hidden), make_spec(kind, geometry)
        parts = TargetParts(lambda tokens: embedding[tokens], lambda states: states @ embedding.T)
        with torch.device("meta"):
            shapes = {name: tuple(weight.shape) for name, weight in new_network(spec, parts).named_parameters()}
        weights = {name: normal(*shape) for name, shape in shapes.items()}
        blocks_each = -(-(self._context + N_NEW + SETTINGS.beam * SETTINGS.depth) // BLOCK)
        place = DrafterPlacement(n_sequences * blocks_each, BLOCK, setting.dtype, setting.device, forwards=forwards)
        self._runtime = DraftRuntime(DrafterCheckpoint(spec, weights, None, "random"), parts, place, SETTINGS)
        for _ in self._runtime.warm_up():
            pass
        self._states = normal(N_NEW, geometry.hidden)
        for seq in self._sequences:
            table = BlockTable(BLOCK)
            table.extend(range(seq * blocks_each, (seq + 1) * blocks_each))
            self._runtime.start(seq, table, self._context)

    def draft(self) -> list[Branch]:
        """Read the committed rows and draft a tree for each sequence."""
        drawn, committed = 7, []
        for seq in self._sequences:
            sequence = self._runtime.of(seq)
            assert sequence is not None
            ask = DraftRequest(SamplingParams(), None, drawn, self._context + N_NEW + 1, SETTINGS.depth, N_NODES)
            committed.append(CommittedTokens(sequence, self._context, self._states, [5] * N_NEW, drawn, ask))
        branches = [branch for branch in self._runtime.draft(committed) if branch is not None]
        assert len(branches) == len(committed), "the drafter failed; its log says why"
        return branches


def time_drafts(setting: GpuSetting) -> Iterator[Row]:
    """Yield a row for each drafter and number of sequences."""
    for kind, n_sequences in product(KINDS, SEQUENCES[:1] if setting.is_tiny else SEQUENCES):
        yield from attempt(setting, f"{kind}, {n_sequences}", partial(_time_draft, setting, kind, n_sequences))


@torch.inference_mode()
def _time_draft(setting: GpuSetting, kind: str, n_sequences: int) -> Iterator[Row]:
    first: list[tuple[int, int]] = []
    ways: dict[str, MakeForwards] = {"modules": ModuleForwards, "graphs": KernelForwards}
    for way in ways if setting.is_cuda else ("modules",):
        drafting = DraftingSequences(setting, kind, n_sequences, ways[way])
        nodes = [node for one in drafting.draft() for node in zip(one.tokens, one.parents or (), strict=True)]
        first, seconds = first or nodes, measure_latency(setting, drafting.draft, 2 if setting.is_tiny else 30)
        row: Row = {"drafter": kind, "sequences": n_sequences, "by": way, "ms": seconds * 1e3, "nodes": len(nodes)}
        yield {**row, "nodes different": sum(a != b for a, b in zip(first, nodes, strict=False))}


PARTS = (MeasurementPart("drafts", 3, "How long is a draft by modules and in graphs?", time_drafts),)
