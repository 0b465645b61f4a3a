"""What an ingress replica is told of its pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that the page for operators may kill."""

    part: str  # router, stage, speculator
    place: int = 0  # which of them, from 0

    @property
    def name(self) -> str:
        """As it is asked for."""
        return self.part if self.part == "router" else f"{self.part}-{self.place}"


@dataclass(frozen=True, slots=True)
class PlaygroundOptions:
    """Of the pages."""

    is_default_model: bool = False  # examples are those that it answers sensibly, and the page describes it
    victims: tuple[Victim, ...] = ()  # empty: nothing may be killed
