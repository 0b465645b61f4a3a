"""The model of docs/scaling.md: formulas only, no measurement. Times in seconds, rates per second.

``n`` streams decode at a time; a step carries a micro-batch of ``b`` of them, each with a tree of ``k`` nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.simulated.profile import PipelineProfile

# Fits tokens per forward of 1.90 at 16 nodes and 2.24 at 64, measured, and of 2.52 at 128 (SPECTRA, Le et al., 2025).
TAU_PER_LOG = 0.31


def tokens_per_forward(nodes: float) -> float:
    """Tokens per forward of a good method on ordinary text: every doubling of the tree adds the same."""
    return 1.0 + TAU_PER_LOG * math.log1p(nodes)


@dataclass(frozen=True, slots=True)
class DecodingRates:
    """Rates of ``streams`` streams that decode at a time."""

    streams: int
    nodes: int  # of every tree
    micro_batches: int
    step_s: float  # between two steps of one stream
    tokens_per_step: float = 1.0

    @property
    def steps_per_s(self) -> float:
        """Steps of single sequences, over all streams."""
        return self.streams / self.step_s

    @property
    def tokens_per_s(self) -> float:
        """Over all streams."""
        return self.steps_per_s * self.tokens_per_step

    @property
    def stream_tokens_per_s(self) -> float:
        """Of one stream."""
        return self.tokens_per_step / self.step_s


@dataclass(frozen=True, slots=True)
class Cluster:
    """A pipeline and what moving a step through it costs besides stages and links."""

    profile: PipelineProfile
    stages: int
    hop_s: float = 0.0  # software of a stage: framing, sockets, a thread that wakes up
    turn_s: float = 0.0  # of the router, from an answer to the next step
    context: int = 0  # tokens in the cache of every sequence; 0: their reading is left out, as in docs/scaling.md

    def stage_s(self, b: int, nodes: int) -> float:
        """s(b, rows): the slowest stage, which is the last."""
        return self.profile.stage_seconds(b, b * nodes, is_last=True) + self._read_s(b) + self.hop_s

    def interval_s(self, b: int, nodes: int) -> float:
        """Between two steps through a full pipeline: the slower of stage and wire."""
        return max(self.stage_s(b, nodes), self.profile.wire_seconds(b * (1 + nodes)) if self.stages > 1 else 0.0)

    def step_s(self, b: int, nodes: int) -> float:
        """A step through an empty pipeline, back to the router and out again: the least between two of one stream."""
        stage_s = self.profile.stage_seconds(b, b * nodes) + self._read_s(b) + self.hop_s
        stages = self.stages * stage_s + self.profile.verify_s
        hop = self.profile.link_latency_s + self.profile.wire_seconds(b * (1 + nodes))
        return stages + (self.stages - 1) * hop + self.turn_s

    def cycle_s(self, sizes: Sequence[int], nodes: int) -> float:
        """Between two steps of one stream when micro-batches of these sizes go round."""
        return max(self.step_s(max(sizes), nodes), sum(self.interval_s(b, nodes) for b in sizes))

    def _read_s(self, b: int) -> float:
        """Of a stage for the keys and values of a micro-batch."""
        return b * self.context * self.profile.context_s

    def decoding(self, streams: int, nodes: int = 0, tokens_per_step: float = 1.0) -> DecodingRates:
        """The best split of ``streams`` into micro-batches: the shortest cycle, then the fewest steps."""
        cycle_s, m = min((self.cycle_s(split(streams, m), nodes), m) for m in range(1, streams + 1))
        return DecodingRates(streams, nodes, m, cycle_s, tokens_per_step)

    def speculating(self, streams: int, nodes: int) -> DecodingRates:
        """With trees of ``nodes`` nodes that earn ``tokens_per_forward``."""
        return self.decoding(streams, nodes, tokens_per_forward(nodes))

    def gain(self, streams: int, nodes: int) -> float:
        """Tokens per second with such trees over those without."""
        return self.speculating(streams, nodes).tokens_per_s / self.decoding(streams).tokens_per_s

    def best_nodes(self, streams: int, choices: Sequence[int] = (0, 1, 2, 4, 8, 16, 32, 64, 128)) -> int:
        """The tree that brings most tokens per second."""
        return max(choices, key=lambda nodes: (self.speculating(streams, nodes).tokens_per_s, -nodes))

    def with_prompts(self, found: DecodingRates, prompt: int, output: int) -> float:
        """Tokens per second when every stream reads a prompt and writes ``output`` tokens, one request on another.

        Prompts take the stages' time (``prompt_row_s`` a row) from decoding, and the stream's own first.
        """
        steps = output / found.tokens_per_step
        b = math.ceil(found.streams / found.micro_batches)
        stage_s = steps * self.interval_s(b, found.nodes) / b + prompt * self.profile.prompt_row_s
        alone_s = steps * found.step_s + self.stages * (self.profile.base_s + prompt * self.profile.prompt_row_s)
        return min(output / stage_s, found.streams * output / alone_s)

    def stall_s(self, chunk: int) -> float:
        """How much longer a step takes for a chunk of a prompt: what decoding streams wait."""
        return self.stages * chunk * self.profile.prompt_row_s


def split(n: int, m: int) -> list[int]:
    """``n`` streams in ``m`` micro-batches as even as can be, the largest first."""
    size, extra = divmod(n, m)
    return [size + (i < extra) for i in range(m)]


def hop_bytes(rows: int, hidden: int = 8192, bytes_per_value: int = 2) -> int:
    """Of the hidden states of a step between two stages."""
    return rows * hidden * bytes_per_value
