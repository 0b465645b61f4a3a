"""Speculators from the names of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from engine.protocol import Speculator
from speculators.method import MethodContext, SpeculatorOptions
from speculators.methods import all_methods, check_name, method_names, settings_sections
from speculators.mixing.combined import CombinationConfig, Combined
from speculators.successors.config import CORPUS, TARGET, TEXT, SuccessorConfig
from speculators.successors.speculator import Successors

Factory = Callable[[SpeculatorOptions], Speculator]


def create(
    method: str,
    options: SpeculatorOptions | None = None,
    extra: Mapping[str, Factory] | None = None,
    parts: dict[str, Speculator] | None = None,
) -> Speculator:
    """Return a speculator for ``method``: one name, or several joined with ``+`` in priority order.

    Args:
        method: for instance ``pld`` or ``pld+spectra-core``.
        options: settings and inputs of the methods.
        extra: factories by further names, for tests and benchmarks that bring their own speculators.
        parts: speculators that exist already, by name; new ones are added. A drafter's weights are in memory once,
            however many methods join it with others.

    Raises:
        UnknownMethodError: a name is unknown (the message lists the available ones) or repeated, or it needs an input
            that the options lack.
    """
    made = {} if parts is None else parts
    found = _Parts(options or SpeculatorOptions(), extra or {}, made)
    joined = found.of(method_names(method, found.names))
    return joined[0] if len(joined) == 1 else Combined(joined, found.options.settings_of(CombinationConfig))


def available(options: SpeculatorOptions) -> tuple[str, ...]:
    """Return the names of the methods that need no more than the options have."""
    return tuple(name for name, method in all_methods().items() if not method.missing(options))


def warmed(options: SpeculatorOptions) -> SpeculatorOptions:
    """Return the options with all settings named ``shared`` set: requests of a scope then share what they learn."""
    kinds = [section.settings for section in settings_sections().values()]
    sharing: list[Any] = [
        options.settings_of(kind) for kind in kinds if any(one.name == "shared" for one in fields(kind))
    ]
    return options.with_settings(*(replace(settings, shared=True) for settings in sharing))


class _Parts:
    """Makes the speculators of one pool, each name's once."""

    def __init__(self, options: SpeculatorOptions, extra: Mapping[str, Factory], made: dict[str, Speculator]) -> None:
        self.options = options
        self.names = (*all_methods(), *extra)
        self._extra = extra
        self._made = made

    def of(self, names: Sequence[str]) -> list[Speculator]:
        """Return a speculator per name; the names that are parts of the mixed model become one."""
        mixed = tuple(name for name in names if name in (TEXT, TARGET, CORPUS) and self._settings_mode(name) == "mixed")
        if len(mixed) < 2:
            return [self._once(name, partial(self._single, name)) for name in names]
        joined = self._once("+".join(mixed), partial(self._mixture, mixed))
        kept = [name for name in names if name not in mixed[1:]]
        return [joined if name == mixed[0] else self._once(name, partial(self._single, name)) for name in kept]

    def _once(self, name: str, make: Callable[[], Speculator]) -> Speculator:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _single(self, name: str) -> Speculator:
        if name in self._extra:
            return self._extra[name](self.options)
        check_name(name)
        return all_methods()[name].make(MethodContext(self.options, self.of))

    def _settings_mode(self, name: str) -> str:
        return str(getattr(self.options.settings_of(all_methods()[name].settings), "mode", ""))

    def _mixture(self, sources: tuple[str, ...]) -> Speculator:
        for name in sources:
            all_methods()[name].check_needs(self.options)
        library = self.options.retrieval() if CORPUS in sources and self.options.retrieval is not None else None
        return Successors(self.options.settings_of(SuccessorConfig), sources, self.options.vocabulary, library)
