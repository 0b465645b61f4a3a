"""How a number of GPUs can hold a model: stages and replicas, memory of each stage, and estimated rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.planning.cluster import Cluster, DecodingRates, split
from app.planning.sizes import ModelSizes
from engine.errors import ConfigError
from engine.model.partition import GIB
from engine.model.ranges import LayerRange
from engine.model.sizes import StageMemory
from engine.simulated.profile import PipelineProfile

STREAMS = (1, 8, 32, 128, 512)
BLOCK = 64  # tokens of a KV block, as --block-size has it; the last one of a sequence is part empty
MOST_GPUS = 4096

Profiles = Callable[[Sequence[LayerRange]], PipelineProfile]
"""The profile of a pipeline with these layers a stage."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """What speculation is assumed to do."""

    tokens_per_forward: float | None = None  # None: the fit of docs/scaling.md, at the tree that pays best
    nodes: int = 63  # drafted a step, where ``tokens_per_forward`` is given

    def __post_init__(self) -> None:
        if self.tokens_per_forward is not None and not 1 <= self.tokens_per_forward <= self.nodes + 1:
            raise ConfigError(
                f"--tokens-per-forward is {self.tokens_per_forward:g}; it must be 1 to {self.nodes + 1}, the "
                "nodes of a tree and the bonus token"
            )

    def of(self, cluster: Cluster, streams: int) -> DecodingRates:
        """Rates of so many streams with drafts."""
        if self.tokens_per_forward is not None:
            return cluster.decoding(streams, self.nodes, self.tokens_per_forward)
        return cluster.speculating(streams, cluster.best_nodes(streams))


@dataclass(frozen=True, slots=True)
class Rate:
    """Estimated tokens per second of so many streams over all replicas, without drafts and with them."""

    streams: int
    plain: float
    drafted: float
    nodes: int  # of a tree


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """A way to use all GPUs."""

    replicas: int  # pipelines
    stages: int
    # what each stage of a pipeline holds, its part of the KV cache included; empty: it does not fit
    held: Sequence[StageMemory] = ()
    kv_bytes: int = 0  # KV cache of one pipeline over its stages
    sequences: int = 0  # of the asked context that fit at once, over all replicas
    rates: Sequence[Rate] = ()  # of the numbers of streams that fit
    why_not: str = ""  # why it does not fit; "": it does


@dataclass(frozen=True, slots=True)
class LayoutConstraints:
    """What is planned."""

    gpus: int  # of all replicas
    usable: int  # bytes of one GPU for weights, KV cache and a step
    context: int  # tokens of a sequence, prompt and output
    stages: int | None = None  # of a pipeline; None: every number that divides the GPUs

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MOST_GPUS:
            raise ConfigError(f"--gpus is {self.gpus}; it must be 1 to {MOST_GPUS}")
        if self.context < 1:
            raise ConfigError(f"--context is {self.context}; it must be at least 1")
        if self.stages is not None and (self.stages < 1 or self.gpus % self.stages):
            raise ConfigError(f"--stages is {self.stages}; it must divide --gpus, {self.gpus}")

    @property
    def cuts(self) -> list[int]:
        """Numbers of stages to look at."""
        return [n for n in range(1, self.gpus + 1) if self.gpus % n == 0 and self.stages in (None, n)]


def layouts(
    sizes: ModelSizes, constraints: LayoutConstraints, profiles: Profiles, software: tuple[float, float], drafts: Drafts
) -> list[GpuLayout]:
    """Every layout, fewest stages first.

    Args:
        profiles: makes the profile of a pipeline.
        software: ``hop_s`` and ``turn_s`` of `Cluster`.
        drafts: what speculation is assumed to do.

    Raises:
        ConfigError: the context is longer than the model's.
    """
    if constraints.context > sizes.spec.max_positions:
        raise ConfigError(f"--context is {constraints.context}; the model allows {sizes.spec.max_positions} tokens")
    return [
        _layout(sizes, constraints, n, profiles, software, drafts) for n in constraints.cuts if n <= sizes.spec.n_layers
    ]


def chosen(found: Sequence[GpuLayout]) -> GpuLayout | None:
    """The layout that holds most sequences, of several the one with fewest stages; None: the model fits in none."""
    return max((one for one in found if not one.why_not), key=lambda one: one.sequences, default=None)


def _layout(
    sizes: ModelSizes,
    constraints: LayoutConstraints,
    stages: int,
    profiles: Profiles,
    software: tuple[float, float],
    drafts: Drafts,
) -> GpuLayout:
    replicas = constraints.gpus // stages
    blocks = -(-constraints.context // BLOCK) + 1  # one for the tree after the context
    sequence = blocks * BLOCK * sizes.kv_token_bytes
    try:
        ranges = sizes.split(stages, sequence, constraints.usable)
    except ConfigError:
        largest = max(one.weights + one.kv for one in sizes.stages(sizes.split(stages, sequence), sequence)) / GIB
        lacks = (
            f"a stage would hold {largest:.1f} GiB, one sequence's cache included, of {constraints.usable / GIB:.1f}"
        )
        return GpuLayout(replicas, stages, why_not=lacks)
    kv_bytes = sizes.kv_room(ranges, constraints.usable)
    fits = kv_bytes // sequence
    cluster = Cluster(profiles(ranges), stages, *software, constraints.context)
    rates = [_rate(cluster, n, replicas, drafts) for n in STREAMS if n <= fits * replicas]
    return GpuLayout(replicas, stages, sizes.stages(ranges, kv_bytes), kv_bytes, fits * replicas, rates)


def _rate(cluster: Cluster, streams: int, replicas: int, drafts: Drafts) -> Rate:
    """Streams are spread over replicas as evenly as can be."""
    parts = split(streams, min(streams, replicas))
    plain, drafted = [cluster.decoding(n) for n in parts], [drafts.of(cluster, n) for n in parts]
    of_plain, of_drafted = (sum(one.tokens_per_s for one in found) for found in (plain, drafted))
    return Rate(streams, of_plain, of_drafted, drafted[0].nodes)
