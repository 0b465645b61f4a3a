"""Every exception of the engine.

``SpectraError`` is the root. ``RequestError`` is the client's fault (HTTP 4xx), every other one the server's (5xx).
"""


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


class ModelChangedError(SpectraError):
    """The request was started with, or encoded for, another model than the one served now."""


class StepFailedError(SpectraError):
    """The target could not run a step with this sequence in it."""


class ConfigError(SpectraError):
    """A configuration value is wrong; the message names field, value and allowed values."""
