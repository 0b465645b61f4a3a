"""Makes the plan of ``spectra plan``: checks its flags, and chooses a layout for latency and one for throughput."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from app.inputs.simulation import profile_at
from app.planning.cluster import Hardware, planning_inputs
from app.planning.layouts import GPU_NODES, GpuLayout, PlanRequest, busiest, fastest, layouts
from app.planning.sizes import ModelSizes, sizes_of, usable_bytes
from engine.errors import ConfigError
from engine.model.partition import GIB

RANGES = {  # least and most value of each flag
    "gpus": (1, 4096),
    "context": (1, 1e9),
    "nodes": (1, 4096),
    "memory_tbs": (1e-6, 1e9),
    "tflops": (1e-6, 1e9),
    "launch_us": (0, 1e9),
    "link_gbits": (0, 1e9),
    "node_gpus": (1, 4096),
    "nvlink_gbs": (1e-6, 1e9),
    "exchange_us": (0, 1e9),
    "draft_ms": (0, 1e9),
    "gpu_price": (1e-6, 1e6),
}
DEFAULT_CONTEXT = 4096
DEFAULT_SEQUENCES = 64  # of --max-sequences


@dataclass(frozen=True)
class DeploymentPlan:
    """Layouts of a model on GPUs, and the figures that they were calculated from."""

    model: str  # as the user named it
    model_flags: str  # of ``spectra serve``, for that model in its dtype and quantization
    sizes: ModelSizes
    asked: PlanRequest
    disks: Sequence[float]  # bytes per second at which a stage may read its weights
    found: Sequence[GpuLayout]
    inputs: Sequence[tuple[str, float | str, str]]  # (name, value, source)
    gpu_price: float | None = None  # dollars per GPU-hour; None: no costs are reported

    @cached_property
    def choices(self) -> dict[str, GpuLayout]:
        """The layouts to use for latency and for throughput; empty if the model does not fit."""
        found = {"latency": fastest(self.found), "throughput": busiest(self.found)}
        return {aim: one for aim, one in found.items() if one is not None}

    def dollars(self, tokens_per_s: float) -> float | None:
        """Return the dollars per million tokens if all GPUs make ``tokens_per_s``; None without a price."""
        per_second = None if self.gpu_price is None else self.gpu_price * self.asked.gpus / 3600
        return None if per_second is None or not tokens_per_s else 1e6 * per_second / tokens_per_s

    def command(self, one: GpuLayout) -> str:
        """Return the command that serves a layout, its KV cache rounded down to 0.1 GiB."""
        ranks = f" --tensor-parallel {one.tensor_parallel}" if one.tensor_parallel > 1 else ""
        more = f" --replicas {one.replicas}" if one.replicas > 1 else ""
        each = one.sequences // one.replicas
        more += f" --max-sequences {each}" if each > DEFAULT_SEQUENCES else ""
        return (
            f"spectra serve {self.model_flags} --device cuda --stages {one.stages}{ranks} --stage-gpus 1 "
            f"--kv-gib {int(one.kv_bytes / GIB * 10) / 10:g}{more}"
        )


def check_ranges(given: argparse.Namespace) -> None:
    """Raise ConfigError, which names the flag, if a flag of ``spectra plan`` is out of range."""
    for name, (least, most) in RANGES.items():
        value = getattr(given, name)
        if value is not None and not least <= value <= most:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be {least:g} to {most:g}")
    if given.stages is not None and (given.stages < 1 or given.gpus % given.stages):
        raise ConfigError(f"--stages is {given.stages}; it must divide --gpus, {given.gpus}")
    ranks = given.tensor_parallel
    if ranks is not None and (ranks < 1 or given.node_gpus % ranks or given.gpus % (ranks * (given.stages or 1))):
        raise ConfigError(
            f"--tensor-parallel is {ranks}; it must divide --node-gpus, {given.node_gpus}, since the ranks of a stage "
            f"share a machine, and --gpus, {given.gpus}, by --stages"
        )
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
        given.memory_tbs * 1e12,
        given.tflops * 1e12,
        launch_s=given.launch_us / 1e6,
        link_bytes_per_s=given.link_gbits * 1e9 / 8,
        exchange_s=given.exchange_us / 1e6,
        exchange_bytes_per_s=given.nvlink_gbs * 1e9,
        draft_s=given.draft_ms / 1e3,
    )
    context = min(DEFAULT_CONTEXT, sizes.spec.max_positions) if given.context is None else given.context
    asked = PlanRequest(
        given.gpus,
        usable,
        context,
        given.stages,
        given.tokens_per_forward,
        given.nodes,
        given.tensor_parallel,
        given.node_gpus,
    )
    found = layouts(sizes, asked, hardware, profile)
    named = None if profile is None else (given.profile, profile)
    inputs = planning_inputs(hardware, named, given.tokens_per_forward)
    names = {"--model": given.model.removesuffix("/config.json"), "--revision": given.revision}
    names |= {"--dtype": given.dtype, "--quantization": given.quantization}
    flags = " ".join(f"{flag} {shlex.quote(value)}" for flag, value in names.items() if value is not None)
    return DeploymentPlan(given.model, flags, sizes, asked, disks, found, inputs, given.gpu_price)
