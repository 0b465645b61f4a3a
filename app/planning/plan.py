"""From the flags of ``spectra plan`` to a plan."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace

from app.inputs.simulation import profile_at
from app.planning.hardware import Hardware, derived_profile, spread
from app.planning.inputs import inputs_of
from app.planning.layouts import Drafts, LayoutConstraints, chosen, layouts
from app.planning.report import DeploymentPlan
from app.planning.sizes import sizes_of, usable_bytes
from engine.errors import ConfigError
from engine.model.ranges import LayerRange
from engine.simulated.profile import PipelineProfile

MOST_NODES = 4096
DEFAULT_CONTEXT = 4096


def make_plan(given: argparse.Namespace, disks: Sequence[float]) -> DeploymentPlan:
    """The plan of parsed flags.

    Raises:
        ConfigError: a flag is out of range, or there is no such model or profile; the message names it.
        UnsupportedModelError: the model's architecture is not supported.
    """
    if not 1 <= given.nodes <= MOST_NODES:
        raise ConfigError(f"--nodes is {given.nodes}; it must be 1 to {MOST_NODES}")
    hardware = Hardware(
        given.memory_tbs * 1e12, given.tflops * 1e12, given.launch_us / 1e6, link_bytes_per_s=given.link_gbits * 1e9 / 8
    )
    drafts = Drafts(given.tokens_per_forward, given.nodes)
    usable = usable_bytes(given.gpu_memory_gib, given.usable)
    constraints = LayoutConstraints(
        given.gpus, usable, DEFAULT_CONTEXT if given.context is None else given.context, given.stages
    )
    profile = None if given.profile is None else (given.profile, profile_at(given.profile, "--profile"))
    sizes = sizes_of(given.model, given.revision, given.dtype, given.quantization)
    if given.context is None:
        constraints = replace(constraints, context=min(DEFAULT_CONTEXT, sizes.spec.max_positions))

    def profiles(ranges: Sequence[LayerRange]) -> PipelineProfile:
        if profile is None:
            return derived_profile(sizes, list(ranges), hardware)
        return spread(profile[1], len(ranges))

    found = layouts(sizes, constraints, profiles, (hardware.hop_s, hardware.turn_s), drafts)
    inputs = inputs_of(hardware, profile, given.tokens_per_forward)
    return DeploymentPlan(given.model, _model_flags(given), sizes, constraints, disks, found, chosen(found), inputs)


def _model_flags(given: argparse.Namespace) -> str:
    """What ``spectra serve`` is given, so that its model is the one that was planned."""
    names = {"--model": given.model.removesuffix("/config.json"), "--revision": given.revision}
    names |= {"--dtype": given.dtype, "--quantization": given.quantization}
    return " ".join(f"{flag} {shlex.quote(value)}" for flag, value in names.items() if value is not None)
