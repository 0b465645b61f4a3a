"""Every exception the engine raises, in one place.

``SpectraError`` is the root. A caller that maps errors to HTTP needs only two branches: ``RequestError`` is the
client's fault (4xx, names the parameter), everything else is ours (5xx).
"""


class SpectraError(Exception):
    """Root of the hierarchy."""


class RequestError(SpectraError):
    """One request cannot be served as asked; no other request is affected.

    ``param`` names the offending field, so that an API can report it.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownMethodError(RequestError):
    """The speculation method is unknown, not available yet, or lacks an input it needs."""


class PromptTooLongError(RequestError):
    """Prompt plus requested tokens exceed the model's context or the whole KV cache."""


class OverloadedError(SpectraError):
    """The waiting queue is full; ``retry_after`` says in seconds when to try again."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnsupportedModelError(SpectraError):
    """The checkpoint's architecture lacks something the engine needs; the message names it."""


class OutOfBlocksError(SpectraError):
    """The KV cache has no free block left for a sequence that has to grow."""


class TargetLostError(SpectraError):
    """The process that runs the target died or stopped answering."""


class ModelChangedError(SpectraError):
    """The request was begun with, or encoded for, another model than the one that is served now."""


class StepFailedError(SpectraError):
    """The target could not run a step with this sequence in it."""


class ConfigError(SpectraError):
    """A configuration value is wrong; the message names field, value and what would be right."""
