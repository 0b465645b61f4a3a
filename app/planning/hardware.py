"""Derives step times of a stage from the speeds of a GPU, and lists each assumed speed with its source.

A stage reads its weights once a step, or waits for operator launches if these take longer. Rows share the reading until
their arithmetic takes as long.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from app.planning.sizes import ModelSizes
from engine.model.partition import ModelParts
from engine.model.ranges import LayerRange
from engine.simulated.profile import H200_BYTES_PER_S, H200_FLOPS, PipelineProfile

LAYER_OPERATORS, OTHER_OPERATORS = 40, 48  # of a step without drafts, counted: in a layer; in head and verification
TREE_S, TREE_LAYERS = 0.3e-3 / 64, 32  # estimated seconds that a node adds in so many layers, without arithmetic
TAU = "1 + 0.31 ln(1 + nodes): a fit to three measured methods on other models, docs/scaling.md"


def _figure(default: float, source: str) -> Any:
    """Return a field with the source of its default, which the report prints."""
    return field(default=default, metadata={"source": source})


@dataclass(frozen=True, slots=True)
class Hardware:
    """Assumed speeds of a GPU, of the software and of the links between stages."""

    memory_bytes_per_s: float = _figure(H200_BYTES_PER_S, "a copy on an H200, measured with PyTorch alone")
    # dense, in the model's dtype; a multiplication and an addition are two
    flops: float = _figure(H200_FLOPS, "a large bf16 product on an H200, measured with PyTorch alone")
    # of the host for each operator; 0: one graph launches them all
    launch_s: float = _figure(6e-6, "estimate of a launch, docs/gpu.md; 40 operators a layer, counted")
    hop_s: float = _figure(3e-4, "software at a stage, docs/scaling.md: measured on two CPU cores")
    turn_s: float = _figure(5e-4, "software in the router, docs/scaling.md: measured on two CPU cores")
    link_bytes_per_s: float = _figure(0.0, "links are left out")  # 0: no limit


def planning_inputs(
    hardware: Hardware, profile: tuple[str, PipelineProfile] | None, tokens_per_forward: float | None
) -> list[tuple[str, float | str, str]]:
    """Return (name, value, source) of every figure that the rates were calculated from.

    With a ``profile`` (its name and contents) only the software times of ``hardware`` count.
    """
    figures: list[tuple[str, float | str, str]] = []
    for one in fields(hardware):
        if profile is None or one.name in ("hop_s", "turn_s"):
            value = getattr(hardware, one.name)
            figures.append((one.name, value, one.metadata["source"] if value == one.default else "given"))
    if profile is not None:
        name, contents = profile
        figures.insert(0, ("profile", name, "docs/scaling.md lists profiles and their sources"))
        figures += [(f"profile.{key}", value, name) for key, value in asdict(contents).items()]
    return [*figures, ("tokens_per_forward", tokens_per_forward or TAU, "given" if tokens_per_forward else TAU)]


def derived_profile(sizes: ModelSizes, ranges: list[LayerRange], hardware: Hardware) -> PipelineProfile:
    """Return the profile of a model's slowest stage."""
    n_layers = max(len(one) for one in ranges)
    read_s = max(_read(sizes.weights, one) for one in ranges) / hardware.memory_bytes_per_s
    base_s = max(read_s, (n_layers * LAYER_OPERATORS + OTHER_OPERATORS) * hardware.launch_s)
    row_s = 2 * max(_read(sizes.parameters, one) for one in ranges) / hardware.flops
    return PipelineProfile(
        base_s=base_s,
        stages=len(ranges),
        flat_sequences=1 << 20,
        flat_rows=max(1, round(base_s / row_s)),
        node_s=TREE_S * n_layers / TREE_LAYERS,
        prompt_row_s=row_s,
        context_s=sizes.kv_layer_bytes * n_layers / hardware.memory_bytes_per_s,
        link_bytes_per_s=hardware.link_bytes_per_s,
        row_bytes=sizes.spec.hidden_size * sizes.dtype.itemsize,
    )


def _read(parts: ModelParts, layers: LayerRange) -> float:
    """Return what a step reads of a stage: the head, even a tied one, but only single rows of the embedding."""
    return replace(parts, embed=0, shared=0).of(layers.first, layers.last)


def spread(profile: PipelineProfile, stages: int) -> PipelineProfile:
    """Return the profile of the same model over another number of stages, each with its share of the layers."""
    share = profile.stages / stages
    scaled = {name: getattr(profile, name) * share for name in ("base_s", "node_s", "prompt_row_s", "context_s")}
    return replace(profile, stages=stages, **scaled)
