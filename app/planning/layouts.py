"""Lays a model out on GPUs: replicas, stages and their tensor-parallel ranks, with memory and estimated rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.planning.cluster import Cluster, Hardware, derived_profile, split, spread
from app.planning.sizes import ModelSizes
from engine.errors import ConfigError
from engine.model.partition import GIB
from engine.model.share import check_ranks
from engine.model.sizes import StageMemory
from engine.simulated.profile import PipelineProfile

STREAMS = (1, 8, 32, 128, 512)
BLOCK = 64  # tokens of a KV block; the last block of a sequence is partly empty
GPU_NODES = 63  # of a step, the default of a server on a GPU
RANK_SIZES = (1, 2, 4, 8)  # ranks of a stage that are tried


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan for."""

    gpus: int  # of all replicas
    usable: int  # bytes of one GPU for weights, KV cache and a step
    context: int  # tokens of a sequence, prompt and output
    stages: int | None = None  # of a replica; None: every number that divides the GPUs
    tokens_per_forward: float | None = None  # None: the fit of docs/explanation/scaling.md
    nodes: int | None = None  # of each step's tree; None: 63 with ``tokens_per_forward``, else the fastest
    tensor_parallel: int | None = None  # ranks of a stage; None: all ``RANK_SIZES`` that the model and a node allow
    node_gpus: int = 8  # GPUs of a machine, which the ranks of a stage share


@dataclass(frozen=True, slots=True)
class Rate:
    """Estimated tokens per second of all streams over all replicas, without drafts and with them."""

    streams: int
    plain: float
    drafted: float
    nodes: int  # of a tree

    @property
    def best(self) -> float:
        """Tokens per second with drafts or without, whichever is more."""
        return max(self.plain, self.drafted)


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """A way to use all GPUs."""

    replicas: int
    stages: int  # of each replica
    # weights and KV cache of a rank of each stage of a replica; empty if the model does not fit
    held: Sequence[StageMemory] = ()
    kv_bytes: int = 0  # KV cache of one replica, over its stages and their ranks
    sequences: int = 0  # of the planned context that fit at a time, over all replicas
    rates: Sequence[Rate] = ()  # for each number of streams that fits
    why_not: str = ""  # why the model does not fit; "": it fits
    tensor_parallel: int = 1  # ranks of each stage
    profile: PipelineProfile | None = None  # step times that the rates follow from; None: the model does not fit
    prompt_tokens_per_s: float = 0.0  # over all replicas, while nothing decodes

    @property
    def largest_weights(self) -> int:
        """Bytes of weights of the largest rank."""
        return max((stage.weights for stage in self.held), default=0)

    @property
    def most_tokens_per_s(self) -> float:
        """Tokens per second of the number of streams that gives most."""
        return max((rate.best for rate in self.rates), default=0.0)

    def __str__(self) -> str:
        return f"{self.replicas} x {self.stages} x {self.tensor_parallel}"


def layouts(
    sizes: ModelSizes, asked: PlanRequest, hardware: Hardware, profile: PipelineProfile | None
) -> list[GpuLayout]:
    """Return every layout, fewest ranks and stages first.

    Step times are those of ``profile`` or, if it is None, follow from ``hardware``. A profile holds for one number of
    ranks: the requested one, or 1.

    Raises:
        ConfigError: the context is longer than the model's, or the model or a node does not allow the ranks.
    """
    if asked.context > sizes.spec.max_positions:
        raise ConfigError(f"--context is {asked.context}; the model allows {sizes.spec.max_positions} tokens")
    return [
        _layout(sizes.of_rank(size) if size > 1 else sizes, asked, hardware, profile, stages, size)
        for size in _rank_sizes(sizes, asked, has_profile=profile is not None)
        for stages in range(1, min(asked.gpus // size, sizes.spec.n_layers) + 1)
        if asked.gpus % (stages * size) == 0 and asked.stages in (None, stages)
    ]


def _rank_sizes(sizes: ModelSizes, asked: PlanRequest, has_profile: bool) -> list[int]:
    if asked.tensor_parallel is not None:
        check_ranks(asked.tensor_parallel, sizes.spec)
        return [asked.tensor_parallel]
    if has_profile:
        return [1]
    return [size for size in RANK_SIZES if size in sizes.rank_sizes and asked.node_gpus % size == 0]


def _layout(
    sizes: ModelSizes,
    asked: PlanRequest,
    hardware: Hardware,
    profile: PipelineProfile | None,
    stages: int,
    size: int,
) -> GpuLayout:
    """Return the layout with ``stages`` of ``size`` ranks; ``sizes`` are those of a rank."""
    replicas = asked.gpus // (stages * size)
    sequence = (-(-asked.context // BLOCK) + 1) * BLOCK * sizes.kv_token_bytes  # one block more for the tree
    try:
        ranges = sizes.split(stages, sequence, asked.usable)
    except ConfigError:
        largest = max(one.weights + one.kv for one in sizes.stages(sizes.split(stages, sequence), sequence)) / GIB
        room = f"{largest:.1f} GiB, one sequence's cache included, of {asked.usable / GIB:.1f}"
        why_not = f"a {'stage' if size == 1 else 'rank'} would hold {room}"
        return GpuLayout(replicas, stages, why_not=why_not, tensor_parallel=size)
    kv_bytes = sizes.kv_room(ranges, asked.usable)
    fits = kv_bytes // sequence * replicas
    times = derived_profile(sizes, ranges, hardware, size) if profile is None else spread(profile, stages)
    cluster = Cluster(times, stages, hardware.hop_s, hardware.turn_s, asked.context)
    rates = [_rate(cluster, n, replicas, asked, hardware.draft_s) for n in STREAMS if n <= fits]
    held = sizes.stages(ranges, kv_bytes)
    prompts_per_s = replicas * cluster.prompt_tokens_per_s()
    return GpuLayout(replicas, stages, held, kv_bytes * size, fits, rates, "", size, times, prompts_per_s)


def fastest(found: Sequence[GpuLayout]) -> GpuLayout | None:
    """Return the layout with the least time per token of one stream; None: none holds a sequence."""
    return max((one for one in found if one.rates), key=lambda one: one.rates[0].best, default=None)


def busiest(found: Sequence[GpuLayout]) -> GpuLayout | None:
    """Return the layout with most tokens per second over all streams, then with most sequences; None as above."""
    with_rates = (one for one in found if one.rates)
    return max(with_rates, key=lambda one: (one.most_tokens_per_s, one.sequences), default=None)


def _rate(cluster: Cluster, streams: int, replicas: int, asked: PlanRequest, draft_s: float = 0.0) -> Rate:
    """Return the rate of streams that are spread evenly over replicas."""
    parts = split(streams, min(streams, replicas))
    drafting = replace(cluster, profile=replace(cluster.profile, verify_s=cluster.profile.verify_s + draft_s))
    if asked.tokens_per_forward is None:
        drafted = [drafting.speculating(n, asked.nodes or drafting.best_nodes(n)) for n in parts]
    else:
        drafted = [drafting.decoding(n, asked.nodes or GPU_NODES, asked.tokens_per_forward) for n in parts]
    plain = sum(cluster.decoding(n).tokens_per_s for n in parts)
    return Rate(streams, plain, sum(one.tokens_per_s for one in drafted), drafted[0].nodes)
