"""Makes a plan from the flags of ``spectra plan``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from app.inputs.simulation import profile_at
from app.planning.hardware import Hardware, planning_inputs
from app.planning.layouts import GpuLayout, PlanRequest, chosen, layouts
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
}
DEFAULT_CONTEXT = 4096
DEFAULT_SEQUENCES = 64  # of --max-sequences


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
    if given.tokens_per_forward is not None and not 1 <= given.tokens_per_forward <= given.nodes + 1:
        raise ConfigError(
            f"--tokens-per-forward is {given.tokens_per_forward}; it must be 1 to {given.nodes + 1}, the nodes of a "
            "tree and the bonus token"
        )


def make_plan(given: argparse.Namespace, disks: Sequence[float]) -> DeploymentPlan:
    """Return the plan for parsed flags.

    Raises:
        ConfigError: a flag is out of range, or there is no such model or profile; the message names it.
        UnsupportedModelError: the model's architecture is not supported.
    """
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
