"""Method names and how to make a speculator from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from engine.errors import UnknownMethodError
from engine.protocol import Speculator
from speculators.autoregressive import Autoregressive
from speculators.combined import Combined
from speculators.pld import PldConfig, PromptLookup
from speculators.spectra_core import SpectraCore, SpectraCoreConfig

METHODS = (
    "autoregressive",
    "pld",
    "anpd",
    "lookahead",
    "spectra-core",
    "spectra-retrieval",
    "spectra",
    "rest",
    "pld-plus-h",
    "pld-plus-a",
    "token-recycling",
    "suffix",
    "draft-model",
    "medusa",
    "eagle",
    "parallelspec-medusa",
    "parallelspec-eagle",
    "auto",
)
"""Every name of the contract; those without a factory yet are refused with 'not available yet'."""


@dataclass(frozen=True, slots=True)
class SpeculatorOptions:
    """Settings of every method, at their defaults unless given."""

    pld: PldConfig = field(default_factory=PldConfig)
    spectra_core: SpectraCoreConfig = field(default_factory=SpectraCoreConfig)


Factory = Callable[[SpeculatorOptions], Speculator]

_FACTORIES: Mapping[str, Factory] = MappingProxyType(
    {
        "autoregressive": lambda options: Autoregressive(),
        "pld": lambda options: PromptLookup(options.pld),
        "spectra-core": lambda options: SpectraCore(options.spectra_core),
    }
)

AVAILABLE = tuple(name for name in METHODS if name in _FACTORIES)


def create(
    method: str, options: SpeculatorOptions | None = None, extra: Mapping[str, Factory] | None = None
) -> Speculator:
    """A speculator for ``method``: one name, or several joined with ``+`` in priority order.

    Args:
        method: for instance ``pld`` or ``pld+spectra-core``.
        options: per-method settings.
        extra: factories under names that are no product's: how tests bring their own speculators.

    Raises:
        UnknownMethodError: a name is unknown (the message lists the available ones), not available yet, or repeated.
    """
    options = options or SpeculatorOptions()
    factories = {**_FACTORIES, **(extra or {})}
    names = [name.strip() for name in method.split("+")]
    if len(set(names)) < len(names):
        raise UnknownMethodError(f"method {method!r} names one method twice", "method")
    parts = [_factory(name, factories)(options) for name in names]
    return parts[0] if len(parts) == 1 else Combined(parts)


def _factory(name: str, factories: Mapping[str, Factory]) -> Factory:
    found = factories.get(name)
    if found is not None:
        return found
    listed = ", ".join(factories)
    if name in METHODS:
        raise UnknownMethodError(f"method {name!r} is not available yet; available: {listed}", "method")
    raise UnknownMethodError(f"unknown method {name!r}; available: {listed}", "method")
