"""What a starting server says on stderr: each stage of the start with the seconds since the command."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

WORK: Mapping[str, str] = MappingProxyType(
    {
        "Target": "stages load the model, and warm up",
        "Retrieval": "the store is opened, its snapshot loaded",
        "Router": "methods compile and index their texts, step times are measured where they are not known",
        "Ingress": "the tokenizer loads, HTTP opens",
    }
)
"""What a deployment does before it is up."""


logger = logging.getLogger(__name__)


class Progress:
    """Prints a line per stage of the start; stdout is for ``Ready`` alone.

    Args:
        is_logged: whether a program reads the lines: then they are of the form of all other log lines.
    """

    def __init__(self, is_logged: bool = False) -> None:
        self._start = time.monotonic()
        self._is_logged = is_logged
        self._seen: dict[str, object] = {}  # deployment -> its status

    def say(self, text: str) -> None:
        """Print ``text`` with the seconds since the start."""
        seconds = time.monotonic() - self._start
        if self._is_logged:
            logger.info(text, extra={"seconds": round(seconds, 1)})
        else:
            print(f"{seconds:7.1f} s  {text}", file=sys.stderr, flush=True)

    def announce(self, text: str) -> None:
        """Print ``text`` as it is."""
        if self._is_logged:
            logger.info(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def follow(self, deployments: Mapping[str, Any]) -> None:
        """Print what changed: deployments of an application as ``serve.status()`` shows them, by name."""
        for name, one in deployments.items():
            before, self._seen[name] = self._seen.get(name), one.status
            if before is None:
                self.say(f"{name} starts: {WORK[name.partition('-')[0]]}")
            if before != one.status == "HEALTHY":
                self.say(f"{name} is up")
