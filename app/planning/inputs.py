"""What a plan was calculated from, by name, with the source of each figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from app.planning.hardware import Hardware
from engine.simulated.profile import PipelineProfile

GIVEN = "given"
SOURCES: Mapping[str, str] = {
    "memory_bytes_per_s": "a copy on an H200, measured with PyTorch alone",
    "flops": "a large bf16 product on an H200, measured with PyTorch alone",
    "launch_s": "estimate of a launch, docs/gpu.md; 40 operators a layer, counted",
    "hop_s": "software at a stage, docs/scaling.md: measured on two CPU cores",
    "turn_s": "software in the router, docs/scaling.md: measured on two CPU cores",
    "link_bytes_per_s": "links are left out",
    "link_latency_s": "links are left out",
}
"""Where defaults are from."""
TAU = "1 + 0.31 ln(1 + nodes): a fit to three measured methods on other models, docs/scaling.md"


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """One figure."""

    name: str
    value: float | str
    source: str


def inputs_of(
    hardware: Hardware, profile: tuple[str, PipelineProfile] | None, tokens_per_forward: float | None
) -> list[PlanningInput]:
    """Every figure that rates were calculated from.

    Args:
        hardware: from which profiles were derived, and whose software costs count in any case.
        profile: name and contents of the one that was taken instead; None: none was.
    """
    default = Hardware()
    named = {
        name: PlanningInput(name, value, SOURCES[name] if value == getattr(default, name) else GIVEN)
        for name, value in asdict(hardware).items()
    }
    if profile is not None:
        named = {name: named[name] for name in ("hop_s", "turn_s")}
        named = {
            "profile": PlanningInput("profile", profile[0], "docs/scaling.md lists profiles and their sources"),
            **named,
        }
        named |= {
            name: PlanningInput(f"profile.{name}", value, profile[0]) for name, value in asdict(profile[1]).items()
        }
    tau = PlanningInput("tokens_per_forward", tokens_per_forward or TAU, TAU if tokens_per_forward is None else GIVEN)
    return [*named.values(), tau]
