"""Every exception of the engine, and the check for optional packages.

``SpectraError`` is the root. ``RequestError`` is the client's fault (HTTP 4xx), every other one the server's (5xx).
"""

from __future__ import annotations

from importlib.util import find_spec
from types import MappingProxyType

MODULES = MappingProxyType(
    {
        "completion": "shtab",
        "int8": "bitsandbytes",
        "parquet": "duckdb",
        "traces": "opentelemetry.exporter.otlp.proto.http",
    }
)
"""The module that each extra in ``pyproject.toml`` installs."""


class SpectraError(Exception):
    """Root of the hierarchy."""


class RequestError(SpectraError):
    """One request cannot be served; no other request is affected. ``param`` names the wrong field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownMethodError(RequestError):
    """The speculation method is unknown, or lacks an input that it needs."""


class PromptTooLongError(RequestError):
    """Prompt and requested tokens exceed the model's context or the whole KV cache."""


class AnswerNotFoundError(RequestError):
    """No answer with this id is kept for this tenant: it never was, it was deleted, or it has expired."""


class AnswerCancelledError(SpectraError):
    """The answer was cancelled, by its client or because nobody read it."""


class OverloadedError(SpectraError):
    """The queue is full; ``retry_after`` is the time until a retry, in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnsupportedModelError(SpectraError):
    """The checkpoint's architecture lacks a feature that the engine needs; the message names it."""


class OutOfBlocksError(SpectraError):
    """The KV cache has too few free blocks for a sequence."""


class TargetLostError(SpectraError):
    """The process that runs the target died or no longer answers."""


class RankLostError(SpectraError, EOFError):
    """A tensor-parallel rank of a stage died, hangs or failed; the stage's ranks have to be connected again."""


class ModelChangedError(SpectraError):
    """The request was started with, or encoded for, another model than the one served now."""


class StepFailedError(SpectraError):
    """The target could not run a step with this sequence in it."""


class ConfigError(SpectraError):
    """A configuration value is wrong; the message names field, value and allowed values."""


def require_extra(extra: str, feature: str) -> None:
    """Check that the module of an extra is installed.

    Args:
        extra: a key of ``MODULES``.
        feature: the flag or command that needs it, for the message.

    Raises:
        ConfigError: it is not installed; the message names the command that installs it.
    """
    try:
        found = find_spec(MODULES[extra])
    except ModuleNotFoundError:  # a parent package is missing
        found = None
    if found is None:
        raise ConfigError(
            f"{feature} needs {MODULES[extra]}, which is not installed: pip install 'spectra-serve[{extra}]'"
        )
