"""Flags that were given and could do nothing: told before anything starts, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.config.serve import ServeConfig

SAYS_NOTHING = (None, "none", "auto", "unix", "tcp")  # values that ask for nothing beyond what is there in any case


def check_idle_flags(config: ServeConfig) -> None:
    """Raises ValueError if a field that was given cannot act beside the others; the message names both."""
    idle: tuple[tuple[bool, str, tuple[str, ...]], ...] = (
        (
            config.simulate is not None,
            "simulate is set: simulated stages have no weights",
            ("layer_split", "stage_memory_gib", "quantization"),
        ),
        (
            config.replicas == 1,
            "replicas is 1: there is no other to choose",
            ("affinity", "affinity_slack", "failover"),
        ),
        (config.affinity == "none", "affinity is none; slack is for affinity prefix", ("affinity_slack",)),
        (config.stages == 1, "stages is 1: it has no neighbour to send to", ("transport",)),
    )
    for applies, reason, names in idle:
        for name in names:
            value = getattr(config, name)
            if applies and name in config.model_fields_set and value not in SAYS_NOTHING:
                raise ValueError(f"{name} is {value}, but has no effect: {reason}")
