"""Names of the speculation methods, and which requests may give; loads no method, so that a command line can ask."""

from __future__ import annotations

from collections.abc import Collection

from engine.errors import UnknownMethodError

AVAILABLE = (
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
    "auto",
)
"""Every name that ``speculators.registry`` can make a speculator of."""

METHODS = (*AVAILABLE, "medusa", "eagle", "parallelspec-medusa", "parallelspec-eagle")
"""Every reserved name; those that are not available are refused with 'not available yet'."""

NEEDS_INPUT = ("rest", "spectra-retrieval", "pld-plus-h", "pld-plus-a", "draft-model")
"""Names that cannot be made at the default settings: a corpus, the model's layers or heads, a drafter is missing."""

STANDALONE = tuple(name for name in AVAILABLE if name not in NEEDS_INPUT)
"""Available names that need nothing but the text."""


def check_name(name: str, available: Collection[str] = AVAILABLE) -> None:
    """Raises UnknownMethodError, which lists ``available``, if ``name`` is unknown or not available yet."""
    if name not in available:
        what = f"method {name!r} is not available yet" if name in METHODS else f"unknown method {name!r}"
        raise UnknownMethodError(f"{what}; available: {', '.join(available)}", "method")


def method_names(method: str, available: Collection[str] = AVAILABLE) -> list[str]:
    """The names that ``method`` joins with ``+``, in priority order.

    Raises:
        UnknownMethodError: a name is unknown (the message lists ``available``), not available yet, or repeated.
    """
    names = [name.strip() for name in method.split("+")]
    if len(set(names)) < len(names):
        raise UnknownMethodError(f"method {method!r} names one method twice", "method")
    for name in names:
        check_name(name, available)
    return names
