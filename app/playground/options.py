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

    is_demo: bool = False  # the model of the package is served: examples are those that it can answer
    victims: tuple[Victim, ...] = ()  # empty: nothing may be killed
