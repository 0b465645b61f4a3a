"""Predicts rates of a pipeline by the formulas of docs/scaling.md. Times are in seconds, rates per second.

Micro-batches of ``b`` streams go round the pipeline; every step of a stream has a tree of ``nodes`` drafted nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.simulated.profile import PipelineProfile

# Fits tokens per forward of 1.90 at 16 nodes and 2.24 at 64, measured, and of 2.52 at 128 (SPECTRA, Le et al., 2025).
TAU_PER_LOG = 0.31


def tokens_per_forward(nodes: float) -> float:
    """Return the tokens per forward of a good method on ordinary text; each doubling of the tree adds as much."""
    return 1.0 + TAU_PER_LOG * math.log1p(nodes)


@dataclass(frozen=True, slots=True)
class DecodingRates:
    """Rates of streams that decode at a time."""

    streams: int
    nodes: int  # of each tree
    step_s: float  # between two steps of one stream
    tokens_per_step: float = 1.0

    @property
    def steps_per_s(self) -> float:
        """Steps of single sequences, over all streams."""
        return self.streams / self.step_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens over all streams."""
        return self.steps_per_s * self.tokens_per_step


@dataclass(frozen=True, slots=True)
class Cluster:
    """A pipeline, and what a step costs in addition to stages and links."""

    profile: PipelineProfile
    stages: int
    hop_s: float = 0.0  # software of a stage: framing, sockets, a thread that wakes up
    turn_s: float = 0.0  # of the router, from an answer to the next step
    context: int = 0  # cached tokens of each sequence; 0 leaves out the time to read them, as docs/scaling.md does

    def interval_s(self, b: int, nodes: int) -> float:
        """Return the time between two steps of a full pipeline: that of the last stage, or of the wire if longer."""
        wire_s = self.profile.wire_seconds(b * (1 + nodes)) if self.stages > 1 else 0.0
        return max(self._stage_s(b, nodes, is_last=True), wire_s)

    def step_s(self, b: int, nodes: int) -> float:
        """Return the time of a step through an empty pipeline, until the router sends the next step."""
        stages_s = self.stages * self._stage_s(b, nodes) + self.profile.verify_s
        hop_s = self.profile.link_latency_s + self.profile.wire_seconds(b * (1 + nodes))
        return stages_s + (self.stages - 1) * hop_s + self.turn_s

    def _stage_s(self, b: int, nodes: int, is_last: bool = False) -> float:
        read_s = b * self.context * self.profile.context_s
        return self.profile.stage_seconds(b, b * nodes, is_last=is_last) + read_s + self.hop_s

    def decoding(self, streams: int, nodes: int = 0, tokens_per_step: float = 1.0) -> DecodingRates:
        """Return the rates with the micro-batches that make the time between two steps of a stream shortest."""

        def cycle_s(sizes: Sequence[int]) -> float:
            return max(self.step_s(max(sizes), nodes), sum(self.interval_s(b, nodes) for b in sizes))

        shortest = min(cycle_s(split(streams, m)) for m in range(1, streams + 1))
        return DecodingRates(streams, nodes, shortest, tokens_per_step)

    def speculating(self, streams: int, nodes: int) -> DecodingRates:
        """Return the rates with trees of ``nodes`` nodes that gain ``tokens_per_forward``."""
        return self.decoding(streams, nodes, tokens_per_forward(nodes))

    def best_nodes(self, streams: int) -> int:
        """Return the size of tree with most tokens per second; the smallest of equals."""
        return max((0, 1, 2, 4, 8, 16, 32, 64, 128), key=lambda nodes: self.speculating(streams, nodes).tokens_per_s)


def split(n: int, m: int) -> list[int]:
    """Return the sizes of ``m`` parts of ``n`` that are as even as possible, the largest first."""
    size, extra = divmod(n, m)
    return [size + (i < extra) for i in range(m)]
