"""Options of the pages of an ingress replica; importing them does not load a web framework."""

from __future__ import annotations

from dataclasses import dataclass

SINGLE = ("router", "ingress", "keeper")  # parts of which there is one


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that the operators' page may kill."""

    part: str  # router, stage, speculator, ingress, keeper
    place: int = 0  # which of them, from 0

    @property
    def name(self) -> str:
        return self.part if self.part in SINGLE else f"{self.part}-{self.place}"


@dataclass(frozen=True, slots=True)
class PlaygroundOptions:
    """What the pages show and permit."""

    is_default_model: bool = False  # show examples that it answers sensibly, and describe it
    keeps_answers: bool = False  # ask for answers that can be read on after the loss of a connection
    victims: tuple[Victim, ...] = ()  # empty: nothing may be killed
