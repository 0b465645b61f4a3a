"""A drafting method as one object: its name, needs, settings and factory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from engine.errors import UnknownMethodError
from engine.grammar.compiler import Grammars
from engine.protocol import Speculator
from engine.step_cost import StepCosts
from retrieval_store.index.index import Library
from speculators.settings import Settings

SettingsT = TypeVar("SettingsT", bound=Settings)

NEEDED = {
    "retrieval": "texts to look up: give --retrieval DIR",
    "layer": "a layer of the model: set layer in its settings",
    "heads": "the model's induction heads: give --heads FILE, as written by 'spectra heads find'",
    "draft_model": "a small model with the target's tokenizer: give --draft-model DIR",
    "grammar": "the target's tokenizer, which is not known here",
    "trained": "a drafter that was trained for the target: give --drafter DIR",
}
"""What a method may need in addition to the text (a field of ``SpeculatorOptions``), and what provides it."""


class GrammarSource(Protocol):
    """Compiles grammars for the target's tokenizer."""

    def grammars(self) -> Grammars: ...


@dataclass(frozen=True, slots=True)
class SpeculatorOptions:
    """Settings and inputs from which a process builds its speculators."""

    settings: tuple[Settings, ...] = ()  # at most one of a class; the others are at their defaults
    retrieval: Callable[[], Library] | None = None  # makes or finds the corpus; called once per process or more
    layer: int | None = None  # of the model, whose hidden states are compared
    heads: tuple[tuple[int, int], ...] = ()  # induction heads of the model, (layer, head)
    draft_model: str | None = None  # directory or hub id of the small model
    grammar: GrammarSource | None = None
    trained: str | None = None  # the method of the target's trained drafter
    vocabulary: Any = None  # VocabularyRows of the target (speculators.successors.vocabulary), if they were read
    step_costs: StepCosts | None = None  # of the target

    def settings_of(self, kind: type[SettingsT]) -> SettingsT:
        """Return the settings of class ``kind``; its defaults if none were given."""
        return next((one for one in self.settings if type(one) is kind), None) or kind()

    def with_settings(self, *settings: Settings) -> SpeculatorOptions:
        """Return a copy in which ``settings`` replace those of the same classes."""
        kinds = [type(one) for one in settings]
        return replace(self, settings=(*(one for one in self.settings if type(one) not in kinds), *settings))


@dataclass(frozen=True, slots=True)
class MethodContext:
    """Inputs of a factory, in addition to the method's settings."""

    options: SpeculatorOptions
    parts: Callable[[Sequence[str]], list[Speculator]]  # speculators of other methods; each exists once in a pool

    def library(self) -> Library:
        """Return the texts to look up, for methods that need ``retrieval``."""
        assert self.options.retrieval is not None
        return self.options.retrieval()


@dataclass(frozen=True, slots=True)
class Method:
    """A drafting method."""

    name: str  # lower-case letters, digits and hyphens
    factory: Callable[[Any, MethodContext], Speculator]  # called with ``settings`` of the request's options
    description: str  # one line, for tables and help
    source: str = ""  # arXiv number and section, or where else it was published
    settings: type[Settings] = Settings  # the base class: the method has none
    needs: tuple[str, ...] = ()  # keys of ``NEEDED``
    is_trained: bool = False  # whether its drafts come from a drafter that was trained for the target
    section: str = ""  # field of the configuration for its settings; empty: the name

    def missing(self, options: SpeculatorOptions) -> str:
        """Return which of the needs neither the options nor the settings provide; empty if none."""
        settings = options.settings_of(self.settings)
        lacking = (
            need
            for need in self.needs
            if getattr(options, need) in (None, ()) and getattr(settings, need, None) in (None, ())
        )
        return next(lacking, "" if not self.is_trained or options.trained == self.name else "trained")

    def check(self) -> None:
        """Raise ValueError or TypeError if the description itself is wrong."""
        if not isinstance(self.needs, tuple) or not NEEDED.keys() >= set(self.needs):
            raise ValueError(f"needs is {self.needs!r}; it must be a tuple of {', '.join(NEEDED)}")
        if not issubclass(self.settings, Settings):
            raise TypeError(f"settings is {self.settings.__name__}; it must inherit from Settings")
        self.settings()

    @property
    def settings_section(self) -> str:
        """Field of the configuration for the settings; empty if the method has none."""
        return "" if self.settings is Settings else self.section or self.name.replace("-", "_")

    def check_needs(self, options: SpeculatorOptions) -> None:
        """Raise UnknownMethodError, which says what to give, if the options lack something that the method needs."""
        missing = self.missing(options)
        if missing:
            is_other = missing == "trained" and options.trained is not None
            found = f"; the drafter given is of method {options.trained!r}" if is_other else ""
            raise UnknownMethodError(f"method {self.name!r} needs {NEEDED[missing]}{found}", "method")

    def make(self, context: MethodContext) -> Speculator:
        """Return a speculator; raise UnknownMethodError as ``check_needs``."""
        self.check_needs(context.options)
        return self.factory(context.options.settings_of(self.settings), context)
