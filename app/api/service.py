"""The boundary between the edge and the backend that runs requests: the `Backend` Protocol and its values.

The edge works on text (templates, tokens to text, stop strings), a backend on tokens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry

from deployments.submission.messages import Health, ModelCard
from engine.events import StepEvent
from engine.request import Request

MEBI = 1024 * 1024


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and defaults of the edge, per process."""

    version: str = "0.1.0"
    max_body_bytes: int = 4 * MEBI
    default_max_tokens: int = 1024  # of a request without limit; less if the context is shorter
    sampling: dict[str, float] = {}  # sampling fields of requests that leave them out; others have OpenAI's defaults
    access_log: bool = True  # a log line for every request that was served
    log_prompts: bool = False  # which holds the beginning of its prompt
    tool_parser: str = "auto"  # the family whose calls of tools the model writes; auto: as its template shows; none
    reasoning_parser: str = "auto"  # think: the model may reason before it answers; auto: as its template shows; none
    shared_namespace: str = ""  # the name of the namespace that all requests look up


class StepStream(Protocol):
    """Step events of one choice. An async generator is one.

    ``aclose`` cancels the request and returns once the cancellation is on its way. It is always called, also after the
    last event and on errors, and may be called twice.
    """

    def __aiter__(self) -> AsyncIterator[StepEvent]: ...

    async def aclose(self) -> None:
        """Cancel the request if it still runs."""


class Backend(Protocol):
    """Runs token-level requests."""

    @property
    def model_card(self) -> ModelCard:
        """The served model."""

    @property
    def counted(self) -> CollectorRegistry:
        """Takes the metrics of this process, which ``metrics_text`` shows added up over all."""

    async def submit(self, request: Request) -> StepStream:
        """Start one choice.

        Errors may come from this method or from the first item of the stream: up to there the client gets a status.

        Raises:
            UnknownMethodError: the method is unknown or not available on this server.
            PromptTooLongError: prompt and limit exceed the context or the KV cache.
            OverloadedError: the waiting queue is full.
            TargetLostError: the target is dead and not restarted yet.
        """

    async def check_ready(self) -> None:
        """Ask on the way that requests take; returns if a request sent now would be served. Must not hang.

        Raises:
            SpectraError: why it would not.
        """

    async def health(self) -> Health:
        """Figures for operators; must not hang."""

    async def metrics_text(self) -> str:
        """Prometheus exposition text, summed over replicas."""
