"""Messages between router and ingress in addition to requests and events: the served model, health, failures.

An engine error arrives as the same exception, not as a traceback of another process.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine import errors
from engine.model.identity import UNKNOWN, ModelIdentity
from speculators.methods import chooses_nodes


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The served model; the router fills it in once the target is loaded."""

    name: str  # what clients write as `model`
    max_model_len: int  # tokens, prompt and output together
    vocab_size: int  # ids below this are valid
    eos_ids: tuple[int, ...] = ()  # from the model's generation config
    created: int = 0  # seconds since 1970
    owned_by: str = "spectra"
    fingerprint: str | None = None  # changes with weights, dtype, quantization or software
    identity: ModelIdentity = UNKNOWN  # requests name its digest as their model
    aliases: tuple[str, ...] = ()  # further names clients may use
    method: str = ""  # default speculation method
    methods: tuple[str, ...] = ()  # methods, alone or joined, that requests may name and that can draft here
    max_nodes: int = 0  # drafted nodes per step, for requests that name no number
    auto_nodes: int = 0  # the same for methods that choose their number of nodes
    limit_nodes: int = 0  # the most that a request may name

    def default_nodes(self, method: str) -> int:
        """Return the drafted nodes of a step for a request that names no number; "" is the server's method."""
        return self.auto_nodes if chooses_nodes(method or self.method) else self.max_nodes


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the router would serve a request sent now."""

    ok: bool
    reason: str = ""  # why not
    detail: dict[str, str | int | float | bool] = {}


class RequestFailure(msgspec.Struct, frozen=True):
    """An engine error that ends a stream."""

    kind: str  # name of the class in engine.errors
    message: str
    param: str | None = None
    retry_after: float = 1.0  # seconds

    @classmethod
    def of(cls, error: errors.SpectraError) -> RequestFailure:
        """Convert an exception of the engine."""
        return cls(type(error).__name__, str(error), getattr(error, "param", None), getattr(error, "retry_after", 1.0))

    def exception(self) -> errors.SpectraError:
        """Convert back; to SpectraError if ``engine.errors`` has no class named ``kind``."""
        kind: Any = getattr(errors, self.kind, errors.SpectraError)
        made: errors.SpectraError
        if issubclass(kind, errors.RequestError):
            made = kind(self.message, self.param)
        elif issubclass(kind, errors.OverloadedError):
            made = kind(self.message, self.retry_after)
        else:
            made = kind(self.message)
        return made
