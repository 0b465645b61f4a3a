"""Trained drafters of a target's geometry, with random weights, that draft behind a context that was never computed."""

from __future__ import annotations

import torch

from benchmarks.gpu.measuring.geometry import BLOCK, SPREAD, Geometry
from engine.drafter.checkpoint.checkpoint import DrafterCheckpoint
from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import new_network
from engine.drafter.serving.committed import Committed
from engine.drafter.serving.forwards import MakeForwards
from engine.drafter.serving.runtime import DraftRuntime, Place
from engine.drafter.settings import DrafterSettings
from engine.drafter.spec import DrafterSpec, LayerShape
from engine.drafter.trees.rounds import BlockAsk
from engine.kv.arena import BlockTable
from engine.protocol import Branch
from engine.sampling.params import SamplingParams

KINDS = ("eagle 3", "p-eagle", "dflash")
N_NEW, N_NODES = 3, 16  # rows that a step commits; nodes of a draft
SETTINGS = DrafterSettings("", depth=6, beam=8)
BLOCK_LAYERS = 5  # of dflash


def spec_of(kind: str, geometry: Geometry) -> DrafterSpec:
    """A drafter as they are published: one layer, for dflash five; three taps; the target's embedding and head."""
    n_layers = BLOCK_LAYERS if kind == "dflash" else 1
    sizes = geometry.intermediate, geometry.n_heads, geometry.n_kv_heads, geometry.head_dim
    layers = LayerShape(n_layers, geometry.hidden, *sizes, 5e5, 1e-5, qk_norm=kind == "dflash")
    taps = (0, geometry.n_layers // 2, geometry.n_layers - 1)
    common = geometry.hidden, geometry.vocab, geometry.vocab, taps, layers
    if kind == "eagle 3":
        return DrafterSpec("eagle", 3, *common)
    if kind == "p-eagle":
        return DrafterSpec("p-eagle", 1, *common, n_drafts=7, mask_token_id=1, has_mask_state=True)
    return DrafterSpec("dflash", 1, *common, n_drafts=15, mask_token_id=1)


class Drafting:
    """Sequences that draft together, always in the same place."""

    def __init__(
        self,
        kind: str,
        geometry: Geometry,
        device: torch.device,
        dtype: torch.dtype,
        n_sequences: int,
        context: int,
        forwards: MakeForwards,
    ) -> None:
        random = torch.Generator("cpu").manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return (torch.randn(shape, generator=random) * SPREAD).to(device, dtype)

        embedding = normal(geometry.vocab, geometry.hidden)
        parts = TargetParts(lambda tokens: embedding[tokens], lambda states: states @ embedding.T)
        spec = spec_of(kind, geometry)
        with torch.device("meta"):
            shapes = {name: tuple(weight.shape) for name, weight in new_network(spec, parts).named_parameters()}
        weights = {name: normal(*shape) for name, shape in shapes.items()}
        blocks_each = -(-(context + N_NEW + SETTINGS.beam * SETTINGS.depth) // BLOCK)
        place = Place(n_sequences * blocks_each, BLOCK, dtype, device, forwards=forwards)
        self._runtime = DraftRuntime(DrafterCheckpoint(spec, weights, None, "random"), parts, place, SETTINGS)
        for _ in self._runtime.warm_up():
            pass
        self._states = normal(N_NEW, geometry.hidden)
        self._context, self._sequences = context, range(n_sequences)
        for seq in self._sequences:
            table = BlockTable(BLOCK)
            table.extend(range(seq * blocks_each, (seq + 1) * blocks_each))
            self._runtime.start(seq, table, context)

    def draft(self) -> list[Branch]:
        """What a step's end asks for: rows are read, trees drafted.

        Raises:
            RuntimeError: the drafter failed.
        """
        drawn, committed = 7, []
        for seq in self._sequences:
            sequence = self._runtime.of(seq)
            assert sequence is not None
            ask = BlockAsk(SamplingParams(), None, drawn, self._context + N_NEW + 1, SETTINGS.depth, N_NODES)
            committed.append(Committed(sequence, self._context, self._states, [5] * N_NEW, drawn, ask))
        branches = [branch for branch in self._runtime.draft(committed) if branch is not None]
        if len(branches) < len(committed):
            raise RuntimeError("the drafter failed; its log says why")
        return branches
