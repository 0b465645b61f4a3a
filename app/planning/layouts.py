"""Lays a model out on GPUs: stages and replicas, the memory of each stage, and estimated rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.planning.cluster import Cluster, split
from app.planning.hardware import Hardware, derived_profile, spread
from app.planning.sizes import ModelSizes
from engine.errors import ConfigError
from engine.model.partition import GIB
from engine.model.sizes import StageMemory
from engine.simulated.profile import PipelineProfile

STREAMS = (1, 8, 32, 128, 512)
BLOCK = 64  # tokens of a KV block; the last block of a sequence is partly empty


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan for."""

    gpus: int  # of all replicas
    usable: int  # bytes of one GPU for weights, KV cache and a step
    context: int  # tokens of a sequence, prompt and output
    stages: int | None = None  # of a replica; None: every number that divides the GPUs
    tokens_per_forward: float | None = None  # None: the fit of docs/scaling.md, with the fastest tree
    nodes: int = 63  # of each step's tree, if ``tokens_per_forward`` is given


@dataclass(frozen=True, slots=True)
class Rate:
    """Estimated tokens per second of all streams over all replicas, without drafts and with them."""

    streams: int
    plain: float
    drafted: float
    nodes: int  # of a tree


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """A way to use all GPUs."""

    replicas: int
    stages: int  # of each replica
    held: Sequence[StageMemory] = ()  # weights and KV cache of each stage of a replica; empty if the model does not fit
    kv_bytes: int = 0  # KV cache of one replica, over its stages
    sequences: int = 0  # of the planned context that fit at a time, over all replicas
    rates: Sequence[Rate] = ()  # for each number of streams that fits
    why_not: str = ""  # why the model does not fit; "": it fits

    @property
    def largest_weights(self) -> int:
        """Bytes of weights of the largest stage."""
        return max((stage.weights for stage in self.held), default=0)


def layouts(
    sizes: ModelSizes, asked: PlanRequest, hardware: Hardware, profile: PipelineProfile | None
) -> list[GpuLayout]:
    """Return every layout, fewest stages first; raise ConfigError if the context is longer than the model's.

    Step times are those of ``profile`` or, if it is None, follow from ``hardware``.
    """
    if asked.context > sizes.spec.max_positions:
        raise ConfigError(f"--context is {asked.context}; the model allows {sizes.spec.max_positions} tokens")
    sequence = (-(-asked.context // BLOCK) + 1) * BLOCK * sizes.kv_token_bytes  # one block more for the tree
    found = []
    for stages in range(1, min(asked.gpus, sizes.spec.n_layers) + 1):
        if asked.gpus % stages or asked.stages not in (None, stages):
            continue
        replicas = asked.gpus // stages
        try:
            ranges = sizes.split(stages, sequence, asked.usable)
        except ConfigError:
            largest = max(one.weights + one.kv for one in sizes.stages(sizes.split(stages, sequence), sequence)) / GIB
            room = f"{largest:.1f} GiB, one sequence's cache included, of {asked.usable / GIB:.1f}"
            found.append(GpuLayout(replicas, stages, why_not=f"a stage would hold {room}"))
            continue
        kv_bytes = sizes.kv_room(ranges, asked.usable)
        fits = kv_bytes // sequence * replicas
        times = derived_profile(sizes, ranges, hardware) if profile is None else spread(profile, stages)
        cluster = Cluster(times, stages, hardware.hop_s, hardware.turn_s, asked.context)
        rates = [_rate(cluster, n, replicas, asked) for n in STREAMS if n <= fits]
        found.append(GpuLayout(replicas, stages, sizes.stages(ranges, kv_bytes), kv_bytes, fits, rates))
    return found


def chosen(found: Sequence[GpuLayout]) -> GpuLayout | None:
    """Return the layout that holds most sequences, with fewest stages among equals; None: the model fits in none."""
    return max((one for one in found if not one.why_not), key=lambda one: one.sequences, default=None)


def _rate(cluster: Cluster, streams: int, replicas: int, asked: PlanRequest) -> Rate:
    """Return the rate of streams that are spread evenly over replicas."""
    parts = split(streams, min(streams, replicas))
    if asked.tokens_per_forward is None:
        drafted = [cluster.speculating(n, cluster.best_nodes(n)) for n in parts]
    else:
        drafted = [cluster.decoding(n, asked.nodes, asked.tokens_per_forward) for n in parts]
    plain = sum(cluster.decoding(n).tokens_per_s for n in parts)
    return Rate(streams, plain, sum(one.tokens_per_s for one in drafted), drafted[0].nodes)
