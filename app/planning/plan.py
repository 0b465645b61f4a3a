"""Lays a model out on GPUs: stages and replicas, memory, estimated rates, and the plan of ``spectra plan``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from app.inputs.simulation import profile_at
from app.planning.cluster import Cluster, Hardware, derived_profile, planning_inputs, split, spread
from app.planning.sizes import ModelSizes, sizes_of, usable_bytes
from engine.errors import ConfigError
from engine.model.partition import GIB
from engine.model.sizes import StageMemory
from engine.simulated.profile import PipelineProfile

STREAMS = (1, 8, 32, 128, 512)
BLOCK = 64  # tokens of a KV block; the last block of a sequence is partly empty
RANGES = {  # least and most value of each flag
    "gpus": (1, 4096),
    "context": (1, 1e9),
    "nodes": (1, 4096),
    "memory_tbs": (1e-6, 1e9),
    "tflops": (1e-6, 1e9),
    "launch_us": (0, 1e9),
    "link_gbits": (0, 1e9),
}
DEFAULT_CONTEXT = 4096
GPU_NODES = 63  # of a step, the default of a server on a GPU
DEFAULT_SEQUENCES = 64  # of --max-sequences


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan for."""

    gpus: int  # of all replicas
    usable: int  # bytes of one GPU for weights, KV cache and a step
    context: int  # tokens of a sequence, prompt and output
    stages: int | None = None  # of a replica; None: every number that divides the GPUs
    tokens_per_forward: float | None = None  # None: the fit of docs/explanation/scaling.md
    nodes: int | None = None  # of each step's tree; None: 63 with ``tokens_per_forward``, else the fastest


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
        drafted = [cluster.speculating(n, asked.nodes or cluster.best_nodes(n)) for n in parts]
    else:
        drafted = [cluster.decoding(n, asked.nodes or GPU_NODES, asked.tokens_per_forward) for n in parts]
    plain = sum(cluster.decoding(n).tokens_per_s for n in parts)
    return Rate(streams, plain, sum(one.tokens_per_s for one in drafted), drafted[0].nodes)


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """Layouts of a model on GPUs, and the figures that they were calculated from."""

    model: str  # as the user named it
    model_flags: str  # of ``spectra serve``, for that model in its dtype and quantization
    sizes: ModelSizes
    asked: PlanRequest
    disks: Sequence[float]  # bytes per second at which a stage may read its weights
    found: Sequence[GpuLayout]
    best: GpuLayout | None  # the layout to use; None: the model does not fit
    inputs: Sequence[tuple[str, float | str, str]]  # (name, value, source)

    @property
    def command(self) -> str:
        """The command that serves the best layout, its KV cache rounded down to 0.1 GiB; "" if there is none."""
        if self.best is None:
            return ""
        more = f" --replicas {self.best.replicas}" if self.best.replicas > 1 else ""
        each = self.best.sequences // self.best.replicas
        more += f" --max-sequences {each}" if each > DEFAULT_SEQUENCES else ""
        return (
            f"spectra serve {self.model_flags} --device cuda --stages {self.best.stages} --stage-gpus 1 "
            f"--kv-gib {int(self.best.kv_bytes / GIB * 10) / 10:g}{more}"
        )


def check_ranges(given: argparse.Namespace) -> None:
    """Raise ConfigError, which names the flag, if a flag of ``spectra plan`` is out of range."""
    for name, (least, most) in RANGES.items():
        value = getattr(given, name)
        if value is not None and not least <= value <= most:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be {least:g} to {most:g}")
    if given.stages is not None and (given.stages < 1 or given.gpus % given.stages):
        raise ConfigError(f"--stages is {given.stages}; it must divide --gpus, {given.gpus}")
    most = (given.nodes or GPU_NODES) + 1
    if given.tokens_per_forward is not None and not 1 <= given.tokens_per_forward <= most:
        raise ConfigError(
            f"--tokens-per-forward is {given.tokens_per_forward}; it must be 1 to {most}, the nodes of a tree and the "
            "bonus token"
        )


def make_plan(given: argparse.Namespace, disks: Sequence[float]) -> DeploymentPlan:
    """Return the plan for parsed flags; raise SpectraError if a flag is out of range, or names no model or profile."""
    check_ranges(given)
    usable = usable_bytes(given.gpu_memory_gib, given.usable)
    profile = None if given.profile is None else profile_at(given.profile, "--profile")
    sizes = sizes_of(given.model, given.revision, given.dtype, given.quantization)
    hardware = Hardware(
        given.memory_tbs * 1e12, given.tflops * 1e12, given.launch_us / 1e6, link_bytes_per_s=given.link_gbits * 1e9 / 8
    )
    context = min(DEFAULT_CONTEXT, sizes.spec.max_positions) if given.context is None else given.context
    asked = PlanRequest(given.gpus, usable, context, given.stages, given.tokens_per_forward, given.nodes)
    found = layouts(sizes, asked, hardware, profile)
    named = None if profile is None else (given.profile, profile)
    inputs = planning_inputs(hardware, named, given.tokens_per_forward)
    names = {"--model": given.model.removesuffix("/config.json"), "--revision": given.revision}
    names |= {"--dtype": given.dtype, "--quantization": given.quantization}
    flags = " ".join(f"{flag} {shlex.quote(value)}" for flag, value in names.items() if value is not None)
    return DeploymentPlan(given.model, flags, sizes, asked, disks, found, chosen(found), inputs)
