"""Refusals as they may be logged and counted: by fields that the schemas have, without the texts of clients."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.telemetry.exchange import Refusal

OTHER = "other"  # a field that no schema has
MOST_CHARS = 200  # of a message in the log
INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of requests, as ``speculative.method``; ``shown`` are those whose values hold no text of a client."""

    known: frozenset[str]
    shown: frozenset[str]

    def named(self, param: str) -> str:
        """The field of an error: of the schemas, ``other``, or "" for none. There are few of them."""
        if not param:
            return ""
        name = INDEX.sub("", param)
        while name not in self.known and "." in name:
            name = name.rpartition(".")[0]
        return name if name in self.known else OTHER

    def loggable(self, refusal: Refusal) -> str:
        """The message, cut; without the value if that may hold what a client wants to be read by the model alone.

        Messages end with what would be right, behind the last semicolon.
        """
        message = refusal.message
        if refusal.param and self.named(refusal.param) not in (*self.shown, OTHER) and ";" in message:
            message = f"{refusal.param}: {message.rpartition('; ')[2]}"
        return message if len(message) <= MOST_CHARS else message[: MOST_CHARS - 4] + " ..."
