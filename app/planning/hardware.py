"""Seconds of a stage on a GPU that is known by its data sheet or by a few measured figures. Arithmetic; nothing is run.

A stage reads its weights once a step, or waits for the launches of its operators where these take longer. Rows share
the reading until arithmetic takes as long. Each input has a name and says where its default is from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.planning.sizes import ModelSizes
from engine.errors import ConfigError
from engine.model.partition import ModelParts
from engine.model.ranges import LayerRange
from engine.simulated.profile import H200_BYTES_PER_S, H200_FLOPS, PipelineProfile

LAYER_OPERATORS, OTHER_OPERATORS = 40, 48  # of a step without drafts, of the head and of verification: counted
TREE_S, TREE_LAYERS = 0.3e-3 / 64, 32  # what a node adds beside arithmetic, in so many layers: an estimate
LEAST, MOST = 1e-6, 1e9  # of any input; the least of those that divide


@dataclass(frozen=True, slots=True)
class Hardware:
    """What is assumed of a GPU, the machine's disk and the way between stages.

    Raises:
        ConfigError: a value is out of range.
    """

    memory_bytes_per_s: float = H200_BYTES_PER_S  # at which weights and caches are read
    flops: float = H200_FLOPS  # dense products a second in the model's dtype, two for a multiplication and an addition
    launch_s: float = 6e-6  # seconds of the host for each operator of a step; 0: all of them in one graph
    hop_s: float = 3e-4  # software seconds of a step at each stage
    turn_s: float = 5e-4  # software seconds of a step in the router
    link_bytes_per_s: float = 0.0  # between two stages; 0: no limit
    link_latency_s: float = 0.0  # of a hop

    def __post_init__(self) -> None:
        for name, flag, value in (
            ("memory_bytes_per_s", "--memory-tbs", self.memory_bytes_per_s / 1e12),
            ("flops", "--tflops", self.flops / 1e12),
        ):
            if not LEAST <= value <= MOST:
                raise ConfigError(f"{flag} ({name}) is {value:g}; it must be {LEAST:g} to {MOST:g}")
        for flag, value in (("--launch-us", self.launch_s * 1e6), ("--link-gbits", self.link_bytes_per_s * 8 / 1e9)):
            if not 0 <= value <= MOST:
                raise ConfigError(f"{flag} is {value:g}; it must be 0 to {MOST:g}")


def derived_profile(sizes: ModelSizes, ranges: list[LayerRange], hardware: Hardware) -> PipelineProfile:
    """The profile of a model's slowest stage, by arithmetic."""
    n_layers = max(len(one) for one in ranges)
    read_s = max(_read(sizes.weights, one) for one in ranges) / hardware.memory_bytes_per_s
    operators = n_layers * LAYER_OPERATORS + OTHER_OPERATORS
    base_s = max(read_s, operators * hardware.launch_s)
    row_s = 2 * max(_read(sizes.parameters, one) for one in ranges) / hardware.flops
    return PipelineProfile(
        base_s=base_s,
        stages=len(ranges),
        flat_sequences=1 << 20,
        flat_rows=max(1, round(base_s / row_s)),
        node_s=TREE_S * n_layers / TREE_LAYERS,
        prompt_row_s=row_s,
        context_s=sizes.kv_layer_bytes * n_layers / hardware.memory_bytes_per_s,
        link_latency_s=hardware.link_latency_s,
        link_bytes_per_s=hardware.link_bytes_per_s,
        row_bytes=sizes.spec.hidden_size * sizes.dtype.itemsize,
    )


def _read(parts: ModelParts, layers: LayerRange) -> float:
    """What a step reads of a stage: rows of the embedding are looked up, while a head is read, a tied one too."""
    return replace(parts, embed=0, shared=0).of(layers.first, layers.last)


def spread(profile: PipelineProfile, stages: int) -> PipelineProfile:
    """A profile of a model over another number of stages, each with its share of the layers."""
    share = profile.stages / stages
    return replace(
        profile,
        stages=stages,
        base_s=profile.base_s * share,
        node_s=profile.node_s * share,
        prompt_row_s=profile.prompt_row_s * share,
        context_s=profile.context_s * share,
    )
