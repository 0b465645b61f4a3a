"""Sections of added methods that cannot be configuration fields cost their own method only."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from app.config import method_fields
from app.config.serve import ServeConfig
from speculators.method import Method
from speculators.methods import Catalogue, catalogue
from speculators.settings import Settings, setting


@dataclass(frozen=True, slots=True)
class SimpleSettings(Settings):
    count: int = setting(3, "an integer", at_least=1)


@dataclass(frozen=True, slots=True)
class OddSettings(Settings):
    values: no_such_name.Type = field(default=(), metadata={"description": "a type that is not there"})  # noqa: F821


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    """The catalogue, and the sections of this test, as in a process of its own."""
    monkeypatch.setattr(catalogue(), "methods", dict(catalogue().methods))
    monkeypatch.setattr(catalogue(), "refused", dict(catalogue().refused))
    monkeypatch.setattr(method_fields, "SECTIONS", {})
    return catalogue()


@pytest.mark.parametrize("name", ["model", "live", "port", "draft-nodes", "section", "model-config", "copy"])
def test_a_section_with_the_name_of_something_else_is_refused(found: Catalogue, name: str) -> None:
    found.methods[name] = Method(name, lambda settings, context: None, "an example", settings=SimpleSettings)
    fields = method_fields.build_method_fields().model_fields
    assert "pld" in fields
    assert name.replace("-", "_") not in fields
    assert name not in found.methods
    assert "is the name of a field or a flag" in found.refused[name]


def test_settings_that_pydantic_cannot_check_are_refused(found: Catalogue) -> None:
    found.methods["odd"] = Method("odd", lambda settings, context: None, "an example", settings=OddSettings)
    assert "pld" in method_fields.build_method_fields().model_fields
    assert "no_such_name" in found.refused["odd"]


def test_all_properties_of_the_configuration_are_reserved() -> None:
    names = {name for name, value in vars(ServeConfig).items() if isinstance(value, property)}
    assert names <= set(method_fields.RESERVED)
