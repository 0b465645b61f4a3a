"""The seam between the edge and whatever runs requests: the `Backend` Protocol and the values it hands over.

The edge owns text (templates, tokens to text, stop strings); a backend owns tokens. Knows no HTTP and no Ray.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from deployments.submission.messages import Health, ModelCard
from engine.events import StepEvent
from engine.request import Request

MEBI = 1024 * 1024


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and defaults of the edge, per process."""

    version: str = "0.1.0"
    max_body_bytes: int = 4 * MEBI
    default_max_tokens: int = 1024  # when a request names none; less if the context is shorter
    max_choices: int = 64  # prompts times n of one request
    thread_chars: int = 16_384  # longer texts are tokenised in a thread, off the event loop


class StepStream(Protocol):
    """Step events of one choice. An async generator is one.

    ``aclose`` cancels the request wherever it runs and returns once that is under way; it is always called, also after
    the last event and on errors, and may be called twice.
    """

    def __aiter__(self) -> AsyncIterator[StepEvent]: ...

    async def aclose(self) -> None:
        """Cancel what still runs."""
        ...


class Backend(Protocol):
    """Runs token-level requests."""

    @property
    def model_card(self) -> ModelCard:
        """The served model."""
        ...

    async def submit(self, request: Request) -> StepStream:
        """Start one choice.

        Errors may come from here or from the stream's first item; until then the client gets a proper status.

        Raises:
            UnknownMethodError: no such method, or not available here.
            PromptTooLongError: does not fit context or KV cache.
            OverloadedError: the waiting queue is full.
            TargetLostError: the target died and is not back.
        """
        ...

    async def health(self) -> Health:
        """The truth about readiness; must not hang."""
        ...

    async def metrics_text(self) -> str:
        """Prometheus exposition text, summed over replicas."""
        ...
