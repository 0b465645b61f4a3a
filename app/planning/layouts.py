"""Lays a model out on GPUs: stages and replicas, the memory of each stage, and estimated rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.planning.cluster import Cluster, DecodingRates, split
from app.planning.hardware import Hardware, derived_profile, spread
from app.planning.sizes import ModelSizes
from engine.errors import ConfigError
from engine.model.partition import GIB
from engine.model.sizes import StageMemory
from engine.simulated.profile import PipelineProfile

STREAMS = (1, 8, 32, 128, 512)
BLOCK = 64  # tokens of a KV block; the last block of a sequence is partly empty
MOST_GPUS = 4096


@dataclass(frozen=True, slots=True)
class Drafts:
    """The assumed speculation."""

    tokens_per_forward: float | None = None  # None: the fit of docs/scaling.md, with the fastest tree
    nodes: int = 63  # of each step's tree, if ``tokens_per_forward`` is given

    def __post_init__(self) -> None:
        if self.tokens_per_forward is not None and not 1 <= self.tokens_per_forward <= self.nodes + 1:
            raise ConfigError(
                f"--tokens-per-forward is {self.tokens_per_forward:g}; it must be 1 to {self.nodes + 1}, the "
                "nodes of a tree and the bonus token"
            )

    def of(self, cluster: Cluster, streams: int) -> DecodingRates:
        if self.tokens_per_forward is not None:
            return cluster.decoding(streams, self.nodes, self.tokens_per_forward)
        return cluster.speculating(streams, cluster.best_nodes(streams))


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


@dataclass(frozen=True, slots=True)
class LayoutConstraints:
    """What every layout keeps to."""

    gpus: int  # of all replicas
    usable: int  # bytes of one GPU for weights, KV cache and a step
    context: int  # tokens of a sequence, prompt and output
    stages: int | None = None  # of a replica; None: every number that divides the GPUs

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MOST_GPUS:
            raise ConfigError(f"--gpus is {self.gpus}; it must be 1 to {MOST_GPUS}")
        if self.context < 1:
            raise ConfigError(f"--context is {self.context}; it must be at least 1")
        if self.stages is not None and (self.stages < 1 or self.gpus % self.stages):
            raise ConfigError(f"--stages is {self.stages}; it must divide --gpus, {self.gpus}")


def layouts(
    sizes: ModelSizes,
    constraints: LayoutConstraints,
    hardware: Hardware,
    profile: PipelineProfile | None,
    drafts: Drafts,
) -> list[GpuLayout]:
    """Return every layout, fewest stages first. Step times are those of ``profile`` or, if it is None, of ``hardware``.

    Raises:
        ConfigError: the context is longer than the model's.
    """
    if constraints.context > sizes.spec.max_positions:
        raise ConfigError(f"--context is {constraints.context}; the model allows {sizes.spec.max_positions} tokens")
    sequence = (-(-constraints.context // BLOCK) + 1) * BLOCK * sizes.kv_token_bytes  # one block more for the tree
    found = []
    for stages in range(1, min(constraints.gpus, sizes.spec.n_layers) + 1):
        if constraints.gpus % stages or constraints.stages not in (None, stages):
            continue
        replicas = constraints.gpus // stages
        try:
            ranges = sizes.split(stages, sequence, constraints.usable)
        except ConfigError:
            largest = max(one.weights + one.kv for one in sizes.stages(sizes.split(stages, sequence), sequence)) / GIB
            room = f"{largest:.1f} GiB, one sequence's cache included, of {constraints.usable / GIB:.1f}"
            found.append(GpuLayout(replicas, stages, why_not=f"a stage would hold {room}"))
            continue
        kv_bytes = sizes.kv_room(ranges, constraints.usable)
        fits = kv_bytes // sequence * replicas
        times = derived_profile(sizes, ranges, hardware) if profile is None else spread(profile, stages)
        cluster = Cluster(times, stages, hardware.hop_s, hardware.turn_s, constraints.context)
        rates = [_rate(cluster, n, replicas, drafts) for n in STREAMS if n <= fits]
        found.append(GpuLayout(replicas, stages, sizes.stages(ranges, kv_bytes), kv_bytes, fits, rates))
    return found


def chosen(found: Sequence[GpuLayout]) -> GpuLayout | None:
    """Return the layout that holds most sequences, with fewest stages among equals; None: the model fits in none."""
    return max((one for one in found if not one.why_not), key=lambda one: one.sequences, default=None)


def _rate(cluster: Cluster, streams: int, replicas: int, drafts: Drafts) -> Rate:
    """Return the rate of streams that are spread evenly over replicas."""
    parts = split(streams, min(streams, replicas))
    drafted = [drafts.of(cluster, n) for n in parts]
    plain = sum(cluster.decoding(n).tokens_per_s for n in parts)
    return Rate(streams, plain, sum(one.tokens_per_s for one in drafted), drafted[0].nodes)
