"""Settings of drafting methods: frozen dataclasses whose fields carry their bounds and a description.

``app`` builds the configuration, the flags and the documentation from them (``spectra serve --help``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from engine.errors import ConfigError

_BOUNDS = ("at_least", "above", "at_most", "below")


def setting(
    default: Any,
    description: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """Return a dataclass field with its bounds; ``description`` is its help."""
    values = zip(_BOUNDS, (at_least, above, at_most, below), strict=True)
    bounds = {name: bound for name, bound in values if bound is not None}
    return field(default=default, metadata={"description": description} | bounds)


@dataclass(frozen=True, slots=True)
class Settings:
    """Base of all settings. A method without settings uses this class itself.

    Raises:
        ConfigError: a value is out of its bounds; the message names the field, the value and what is allowed.
    """

    def __post_init__(self) -> None:
        for name, value, allowed, is_right in self._checks():
            if not is_right:
                raise ConfigError(f"{name} is {value!r}; it must be {allowed}")
        self.check()

    def check(self) -> None:
        """Raise ConfigError if the values of several fields, or the elements of one, are not allowed."""

    def _checks(self) -> Iterator[tuple[str, Any, str, bool]]:
        """Yield (name, value, description of the allowed values, is_allowed) per bound."""
        choices = _choices(type(self))
        for one in fields(self):
            value, bounds = getattr(self, one.name), one.metadata
            if one.name in choices:
                yield one.name, value, f"one of {', '.join(map(str, choices[one.name]))}", value in choices[one.name]
            if value is None:
                continue
            if "at_least" in bounds:
                yield one.name, value, f"at least {bounds['at_least']}", value >= bounds["at_least"]
            if "above" in bounds:
                yield one.name, value, f"above {bounds['above']}", value > bounds["above"]
            if "at_most" in bounds:
                yield one.name, value, f"at most {bounds['at_most']}", value <= bounds["at_most"]
            if "below" in bounds:
                yield one.name, value, f"below {bounds['below']}", value < bounds["below"]


def _choices(kind: type[Any]) -> dict[str, tuple[str, ...]]:
    """Return the allowed values of fields that have a ``Literal`` type."""
    hints = get_type_hints(kind)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
