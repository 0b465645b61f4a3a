"""Predicts rates of a pipeline by the formulas of docs/explanation/scaling.md, from profiles or a GPU's speeds.

Times are in seconds, rates per second. Micro-batches of ``b`` streams go round the pipeline; every step of a stream has
a tree of ``nodes`` drafted nodes. A stage reads its weights once a step and starts its kernels, or waits for operator
launches if these take longer. Of experts it reads those that the rows of the step choose. Rows share the reading until
their arithmetic takes as long. The tensor-parallel ranks of a stage read a share each, then exchange sums.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from app.planning.exchanges import count_exchanges
from app.planning.sizes import ModelSizes
from engine.cuda.plan.layout import BUCKETS
from engine.model.partition import ModelParts
from engine.model.ranges import LayerRange
from engine.scheduling.batch_limits import SchedulerOptions
from engine.simulated.profile import H200_BYTES_PER_S, H200_FLOPS, PipelineProfile

# Fits tokens per forward of 1.90 at 16 nodes and 2.24 at 64, measured, and of 2.52 at 128 (SPECTRA, Le et al., 2025).
TAU_PER_LOG = 0.31
LAYER_OPERATORS, OTHER_OPERATORS = 40, 48  # of a step without drafts, counted: in a layer; in head and verification
# Of the executor: in a layer (engine/cuda/layer.py), two more with several ranks; in head and verification, estimated
LAYER_KERNELS, RANK_KERNELS, OTHER_KERNELS = 12, 2, 10
PROMPT_ROWS = SchedulerOptions().prefill_chunk  # of a step
EXPERT_KERNELS = 5  # more in a layer with experts (engine/cuda/experts.py)
TREE_S, TREE_LAYERS = 0.3e-3 / 64, 32  # estimated seconds that a node adds in so many layers, without arithmetic
TAU = "1 + 0.31 ln(1 + nodes): a fit to three measured methods on other models, docs/explanation/scaling.md"


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
    context: int = 0  # cached tokens of each sequence; 0 leaves out the time to read them

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
            return max(
                self.step_s(max(sizes), nodes), sum(n * self.interval_s(b, nodes) for b, n in Counter(sizes).items())
            )

        shortest = min(cycle_s(split(streams, m)) for m in range(1, streams + 1))
        return DecodingRates(streams, nodes, shortest, tokens_per_step)

    def prompt_tokens_per_s(self) -> float:
        """Return the prompt tokens per second of a full pipeline that decodes nothing; attention is left out."""
        stage_s = self.profile.stage_seconds(0, 0, PROMPT_ROWS, is_last=True) + self.hop_s
        wire_s = self.profile.wire_seconds(PROMPT_ROWS) if self.stages > 1 else 0.0
        return PROMPT_ROWS / max(stage_s, wire_s)

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


def _figure(default: float, source: str) -> Any:
    """Return a field with the source of its default, which the report prints."""
    return field(default=default, metadata={"source": source})


@dataclass(frozen=True, slots=True)
class Hardware:
    """Assumed speeds of a GPU, of the software and of the links between stages."""

    memory_bytes_per_s: float = _figure(H200_BYTES_PER_S, "a copy on an H200, measured with PyTorch alone")
    # dense, in the model's dtype; a multiplication and an addition are two
    flops: float = _figure(H200_FLOPS, "a large bf16 product on an H200, measured with PyTorch alone")
    kernel_s: float = _figure(2.2e-6, "start and end of a kernel in a CUDA graph: estimates of docs/gpu.md")
    # of the host for each operator; 0: one graph launches them all
    launch_s: float = _figure(0.0, "CUDA graphs")
    hop_s: float = _figure(3e-4, "software at a stage, docs/explanation/scaling.md: measured on two CPU cores")
    turn_s: float = _figure(5e-4, "software in the router, docs/explanation/scaling.md: measured on two CPU cores")
    link_bytes_per_s: float = _figure(0.0, "links are left out")  # 0: no limit
    exchange_s: float = _figure(12e-6, "estimate of one NCCL exchange in a CUDA graph; 5e-6 over symmetric memory")
    exchange_bytes_per_s: float = _figure(450e9, "NVLink of an H100 SXM, one direction: its data sheet")
    draft_s: float = _figure(0.0, "drafting is left out")  # of a trained drafter, in each step with drafts


def planning_inputs(
    hardware: Hardware, profile: tuple[str, PipelineProfile] | None, tokens_per_forward: float | None
) -> list[tuple[str, float | str, str]]:
    """Return (name, value, source) of every figure that the rates were calculated from.

    With a ``profile`` (its name and contents) only the software times of ``hardware`` count.
    """
    figures: list[tuple[str, float | str, str]] = []
    for one in fields(hardware):
        if profile is None or one.name in ("hop_s", "turn_s", "draft_s"):
            value = getattr(hardware, one.name)
            figures.append((one.name, value, one.metadata["source"] if value == one.default else "given"))
    if profile is not None:
        name, contents = profile
        figures.insert(0, ("profile", name, "docs/explanation/scaling.md lists profiles and their sources"))
        figures += [(f"profile.{key}", value, name) for key, value in asdict(contents).items()]
    return [*figures, ("tokens_per_forward", tokens_per_forward or TAU, "given" if tokens_per_forward else TAU)]


def derived_profile(sizes: ModelSizes, ranges: list[LayerRange], hardware: Hardware, size: int = 1) -> PipelineProfile:
    """Return the profile of a model's slowest stage; ``sizes`` are those of one of its ``size`` ranks."""
    n_layers, spec = max(len(one) for one in ranges), sizes.spec
    weights, without = sizes.weights, sizes.weights.with_experts(0)
    read_s = max(_read(without, one) for one in ranges) / hardware.memory_bytes_per_s
    experts_s = max(_read(weights, one) - _read(without, one) for one in ranges) / hardware.memory_bytes_per_s
    n_kernels = n_layers * (LAYER_KERNELS + (RANK_KERNELS if size > 1 else 0)) + OTHER_KERNELS
    n_kernels += n_layers * EXPERT_KERNELS if spec.n_experts else 0
    base_s = max(
        read_s + n_kernels * hardware.kernel_s,
        (n_layers * LAYER_OPERATORS + OTHER_OPERATORS) * hardware.launch_s,
    )
    gathered, scattered = (
        count_exchanges(spec, n_layers, size, True, sizes.dtype.itemsize, by_rows) for by_rows in (False, True)
    )
    row_s = 2 * max(_read(sizes.active, one) for one in ranges) / hardware.flops
    n_experts = spec.n_experts // size
    return PipelineProfile(
        base_s=base_s,
        stages=len(ranges),
        flat_sequences=1 << 20,
        flat_rows=max(1, round(base_s / row_s)),
        node_s=TREE_S * n_layers / TREE_LAYERS,
        prompt_row_s=row_s,
        context_s=sizes.kv_layer_bytes * n_layers / hardware.memory_bytes_per_s,
        link_bytes_per_s=hardware.link_bytes_per_s,
        row_bytes=spec.hidden_size * sizes.dtype.itemsize,
        exchange_rows=BUCKETS[0],
        exchange_s=gathered.messages * hardware.exchange_s,
        gather_row_s=gathered.row_bytes / hardware.exchange_bytes_per_s,
        scatter_row_s=scattered.row_bytes / hardware.exchange_bytes_per_s,
        expert_s=experts_s / max(1, n_experts),
        experts_per_rank=n_experts,
        expert_fraction=spec.experts_per_token / max(1, spec.n_experts),
        expert_ranks=size if n_experts else 1,
    )


def _read(parts: ModelParts, layers: LayerRange) -> float:
    """Return what a step reads of a stage: the head, even a tied one, but only single rows of the embedding."""
    return replace(parts, embed=0, shared=0).of(layers.first, layers.last)


def spread(profile: PipelineProfile, stages: int) -> PipelineProfile:
    """Return the profile of the same model over another number of stages, each with its share of the layers."""
    share = profile.stages / stages
    names = ("base_s", "node_s", "prompt_row_s", "context_s", "exchange_s", "gather_row_s", "scatter_row_s", "expert_s")
    return replace(profile, stages=stages, **{name: getattr(profile, name) * share for name in names})
