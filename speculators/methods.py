"""All drafting methods by name, and the strings that join several with ``+``.

A method is one ``Method`` in its own file and one entry of ``BUILT_IN``. Other packages add theirs as entry points of
the group ``spectra.methods`` (docs/how-to/add-a-method.md). Configuration, flags, completion, request checks and the
table in docs/methods/index.md all come from here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from engine.errors import UnknownMethodError
from speculators.auto.speculator import AUTO
from speculators.autoregressive import AUTOREGRESSIVE
from speculators.corpus.rest import REST
from speculators.draft_model.speculator import DRAFT_MODEL
from speculators.grammar import GRAMMAR
from speculators.method import Method
from speculators.mixing.combined import CombinationConfig
from speculators.ngrams.anpd import ANPD
from speculators.ngrams.lookahead import LOOKAHEAD
from speculators.ngrams.pld import PLD
from speculators.ngrams.suffix import SUFFIX
from speculators.peers.adapld import ADAPLD
from speculators.peers.goose import GOOSE
from speculators.peers.stand import STAND
from speculators.pld_plus.speculator import PLD_PLUS_A, PLD_PLUS_H
from speculators.prediction.speculator import PREDICTION
from speculators.settings import Settings
from speculators.spectra.core import SPECTRA_CORE
from speculators.spectra.retrieval import SPECTRA_RETRIEVAL
from speculators.spectra.speculator import SPECTRA
from speculators.successors.config import SuccessorConfig
from speculators.successors.token_recycling import TOKEN_RECYCLING
from speculators.trained import TRAINED

logger = logging.getLogger(__name__)

BUILT_IN: tuple[Method, ...] = (
    AUTOREGRESSIVE,
    PLD,
    ANPD,
    LOOKAHEAD,
    SPECTRA_CORE,
    SPECTRA_RETRIEVAL,
    SPECTRA,
    REST,
    PLD_PLUS_H,
    PLD_PLUS_A,
    TOKEN_RECYCLING,
    SUFFIX,
    GOOSE,
    ADAPLD,
    STAND,
    DRAFT_MODEL,
    GRAMMAR,
    PREDICTION,
    AUTO,
    *TRAINED,
)


class Section(NamedTuple):
    """A part of the configuration: the settings of one method or of several."""

    settings: type[Settings]
    description: str


SHARED_SECTIONS = {
    "successors": Section(SuccessorConfig, "settings that suffix and token-recycling share"),
    "combination": Section(CombinationConfig, "settings of a+b"),
}
ENTRY_POINTS = "spectra.methods"
MOST_PARTS = 6  # names that one method may join
MOST_CHARS = 256  # of a method
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(slots=True)
class Catalogue:
    """The methods of this environment, and the names that are known but unavailable, with the reason."""

    methods: dict[str, Method] = field(default_factory=lambda: {method.name: method for method in BUILT_IN})
    refused: dict[str, str] = field(
        default_factory=lambda: {"mtp": "none of the model families that are served has the layers that it drafts with"}
    )

    def add(self, point: EntryPoint) -> None:
        """Add the method of an installed package, or refuse it by name; a name that is taken keeps its method."""
        if point.name in self.methods:
            logger.warning("%s is not used: there is another method %r", point.value, point.name)
            return
        try:
            self._add(point.name, point.load())
        except (Exception, SystemExit) as error:
            self.refuse(point.name, f"{point.value}: {error!r}")

    def _add(self, name: str, method: object) -> None:
        """Add a method; raise TypeError or ValueError if it is none, or not described as it should be."""
        if not isinstance(method, Method):
            raise TypeError(f"this is {type(method).__name__}, not a Method")
        if not _NAME.fullmatch(method.name) or method.name != name:
            raise ValueError(f"its name is {method.name!r}; it must be the entry point's, {name!r}")
        method.check()
        sections = {one.settings_section: one.settings for one in self.methods.values()}
        sections |= {section: shared.settings for section, shared in SHARED_SECTIONS.items()}
        known = sections.get(method.settings_section)
        if known is not method.settings and (known is not None or method.settings in sections.values()):
            raise ValueError(f"{method.settings.__name__} or its section belongs to another method")
        self.methods[name] = method

    def refuse(self, name: str, reason: str) -> None:
        """Make the method of an installed package unavailable, and log the reason."""
        self.methods.pop(name, None)
        logger.warning("method %r of an installed package is not available: %s", name, reason)
        self.refused[name] = reason


@cache
def catalogue() -> Catalogue:
    """Return all methods; those of packages that were installed before the process started."""
    found = Catalogue()
    for point in sorted(entry_points(group=ENTRY_POINTS)):
        found.add(point)
    return found


def all_methods() -> Mapping[str, Method]:
    return catalogue().methods


def settings_sections() -> dict[str, Section]:
    """Return the parts of the configuration that hold settings of methods, by name."""
    names: dict[str, list[str]] = {}
    kinds: dict[str, type[Settings]] = {}
    for method in all_methods().values():
        if section := method.settings_section:
            names.setdefault(section, []).append(method.name)
            kinds[section] = method.settings
    own = {section: Section(kind, f"settings of {' and '.join(names[section])}") for section, kind in kinds.items()}
    return own | SHARED_SECTIONS


def check_name(name: str, available: Collection[str] | None = None) -> None:
    """Raise UnknownMethodError, which lists ``available`` (by default all methods), if ``name`` is not among them."""
    available = all_methods() if available is None else available
    if name not in available:
        refused = catalogue().refused
        what = f"method {name!r} is not available: {refused[name]}" if name in refused else f"unknown method {name!r}"
        raise UnknownMethodError(f"{what}; available: {', '.join(available)}", "method")


def normalised(method: str) -> str:
    """Return a method without spaces. The order of its names stays: it is their order of priority.

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


def method_names(method: str, available: Collection[str] | None = None) -> list[str]:
    """Return the names that ``method`` joins with ``+``, in priority order.

    Raises:
        UnknownMethodError: a name is not among ``available`` (by default all methods); ``auto`` is joined with others,
            among which it could not choose; or as ``normalised``.
    """
    names = normalised(method).split("+")
    if "auto" in names and len(names) > 1:
        raise UnknownMethodError(
            f"method {method!r} joins 'auto' with other methods; use 'auto' and list them in its setting 'sources'",
            "method",
        )
    for name in names:
        check_name(name, available)
    return names


def check_allowed(method: str, allowed: Collection[str]) -> None:
    """Raise UnknownMethodError, which lists ``allowed``, if neither the normalised ``method`` nor all its names are."""
    if method not in allowed and not all(name in allowed for name in method.split("+")):
        raise UnknownMethodError(
            f"method {method!r} is not among those that this server allows: {', '.join(allowed)}", "method"
        )


def chooses_nodes(method: str) -> bool:
    """Return whether a method drafts only as many nodes as save time, however many it may draft."""
    return method.strip() == "auto"


def reads_prediction(method: str) -> bool:
    """Return whether a method drafts from the prediction of a request that has one."""
    return any(name.strip() in ("auto", "prediction") for name in method.split("+"))


def with_prediction(method: str) -> str:
    """Return the default ``method`` joined with ``prediction``, for requests that have a prediction.

    Plain decoding, and a method that already joins MOST_PARTS names, stay unchanged.
    """
    is_full = method.count("+") + 1 >= MOST_PARTS
    return method if method == "autoregressive" or is_full or reads_prediction(method) else f"prediction+{method}"
