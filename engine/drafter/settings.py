"""Settings of a trained drafter that its checkpoint does not contain, and the drafter's description."""

from __future__ import annotations

from dataclasses import dataclass

from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """The drafter's checkpoint, and the size of trees that grow depth by depth (EAGLE-2, arXiv 2406.16858).

    Raises:
        ConfigError: a value is out of range.
    """

    path: str  # directory or hub id
    taps: tuple[int, ...] | None = None  # layers that replace those of the checkpoint; from 0, -1 is the embedding
    depth: int = 6  # most tokens on a path
    beam: int = 8  # nodes expanded at a depth, and children of each

    def __post_init__(self) -> None:
        for name in ("depth", "beam"):
            if not 1 <= getattr(self, name) <= 32:
                raise ConfigError(f"drafter: {name} is {getattr(self, name)}; it must be 1 to 32")


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """The description of the target's drafter for schedulers and speculators."""

    method: str  # the name in requests
    layout: str  # of its checkpoint
    taps: tuple[int, ...]  # layers whose outputs it reads, from 0; -1 is the embedding
    n_scratch: int  # slots that a draft takes after a sequence's committed tokens
    cache_bytes: int  # per token
    weight_bytes: int  # on the last stage, including the target's embedding if the drafter uses it
    work: int  # weights that a draft multiplies by, counted once per forward pass
    identity: str  # hash of its weights

    def __str__(self) -> str:
        """Return, for example, ``eagle (EAGLE-3), reads the outputs of layers 1, 15, 28``."""
        reads = f"layers {', '.join(map(str, self.taps))}" if self.taps else "the final norm"
        return f"{self.method} ({self.layout}), reads the outputs of {reads}"


def scratch_slots(spec: DrafterSpec, settings: DrafterSettings) -> int:
    """Return the slots that a draft takes after the committed rows.

    Raises:
        ConfigError: the drafter drafts all tokens in one forward pass, and its config does not say how many.
    """
    if spec.method == "medusa":
        return 0
    if spec.method == "eagle":
        return settings.beam * (settings.depth - 1)
    if spec.n_drafts is None:
        raise ConfigError(
            f"the {spec.method} drafter's config names no number of tokens to draft; add speculators_config with "
            "proposal_methods[].speculative_tokens, the number that it was trained for"
        )
    return spec.n_drafts + 1
