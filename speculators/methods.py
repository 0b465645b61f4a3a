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
    "goose",
    "adapld",
    "stand",
    "draft-model",
    "grammar",
    "prediction",
    "auto",
    "medusa",
    "eagle",
    "parallelspec-medusa",
    "parallelspec-eagle",
    "p-eagle",
    "dflash",
)
"""Every name that ``speculators.registry`` can make a speculator of."""

TRAINED = AVAILABLE[AVAILABLE.index("auto") + 1 :]
"""Names whose drafts come from a drafter that was trained for the target."""

REFUSED = {"mtp": "none of the model families that are served has the layers that it drafts with"}
"""Names that are known and not available, and why."""

NEEDS_INPUT = ("rest", "spectra-retrieval", "pld-plus-h", "pld-plus-a", "adapld", "draft-model", "grammar", *TRAINED)
"""Names that cannot be made at the default settings: a corpus, or the model's layers, heads, tokenizer or drafter."""

STANDALONE = tuple(name for name in AVAILABLE if name not in NEEDS_INPUT)
"""Available names that need nothing but the text."""


MOST_PARTS = 6  # names that one method may join
MOST_CHARS = 256  # of a method


def check_name(name: str, available: Collection[str] = AVAILABLE) -> None:
    """Raises UnknownMethodError, which lists ``available``, if ``name`` is unknown or not available."""
    if name not in available:
        what = f"method {name!r} is not available: {REFUSED[name]}" if name in REFUSED else f"unknown method {name!r}"
        raise UnknownMethodError(f"{what}; available: {', '.join(available)}", "method")


def normalised(method: str) -> str:
    """The one spelling of a method; the order of its parts stays, because they draft in that order of priority.

    Raises:
        UnknownMethodError: the method is too long, or it joins too many names or one twice.
    """
    if len(method) > MOST_CHARS:
        raise UnknownMethodError(f"method has {len(method)} characters; it must have at most {MOST_CHARS}", "method")
    names = [name.strip() for name in method.split("+")]
    if len(names) > MOST_PARTS:
        raise UnknownMethodError(f"method joins {len(names)} names; it must join at most {MOST_PARTS}", "method")
    if len(set(names)) < len(names):
        raise UnknownMethodError(f"method {method!r} names one method twice", "method")
    return "+".join(names)


def chooses_nodes(method: str) -> bool:
    """Whether a method drafts only as many nodes as save time, however many it may draft."""
    return "auto" in map(str.strip, method.split("+"))


def reads_prediction(method: str) -> bool:
    """Whether drafts of ``method`` come from the prediction of a request that brings one."""
    return any(name.strip() in ("auto", "prediction") for name in method.split("+"))


def with_prediction(method: str) -> str:
    """What drafts for a request that brings a prediction where ``method`` is the default: it, and the prediction.

    Plain decoding stays so, and a method that joins as many names as may be joined.
    """
    is_full = method.count("+") + 1 >= MOST_PARTS
    return method if method == "autoregressive" or is_full or reads_prediction(method) else f"prediction+{method}"


def check_allowed(method: str, allowed: Collection[str]) -> None:
    """Raises UnknownMethodError, which lists ``allowed``, if neither ``method``, normalised, nor all its parts are."""
    if method not in allowed and not all(name in allowed for name in method.split("+")):
        raise UnknownMethodError(
            f"method {method!r} is not among those that this server allows: {', '.join(allowed)}", "method"
        )


def method_names(method: str, available: Collection[str] = AVAILABLE) -> list[str]:
    """The names that ``method`` joins with ``+``, in priority order.

    Raises:
        UnknownMethodError: a name is unknown (the message lists ``available``) or not available; or as
            ``normalised``.
    """
    names = normalised(method).split("+")
    for name in names:
        check_name(name, available)
    return names
