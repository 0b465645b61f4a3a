"""Methods of other packages, and settings that describe themselves."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from typing import Any, Literal

import pytest

from engine.errors import ConfigError, UnknownMethodError
from speculators.method import Method
from speculators.methods import BUILT_IN, ENTRY_POINTS, Catalogue, catalogue, method_names, settings_sections
from speculators.ngrams.pld import PldConfig, PromptLookup
from speculators.settings import Settings, setting


@dataclass(frozen=True, slots=True)
class ExampleSettings(Settings):
    count: int = setting(3, "an integer", at_least=1, below=9)
    share: float = setting(0.5, "a number", above=0.0, at_most=1.0)
    kind: Literal["plain", "odd"] = setting("plain", "a choice")
    limit: int | None = setting(None, "may be absent", at_least=0)

    def check(self) -> None:
        if self.kind == "odd" and self.count % 2 == 0:
            raise ConfigError(f"count is {self.count}; it must be odd")


def example(name: str, settings: type[Settings] = ExampleSettings, **more: Any) -> Method:
    return Method(name, lambda settings, context: PromptLookup(), "an example", settings=settings, **more)


EXAMPLE, PLD_AGAIN, ODD_NAME = example("example"), example("pld"), example("Ex+ample")
NEEDY, TAKEN, REUSED = (
    example("needy", needs="retrieval"),
    example("taken", section="pld"),
    example("reused", PldConfig),
)


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, ENTRY_POINTS)


def test_a_method_of_another_package_is_added_by_name() -> None:
    found = Catalogue()
    found.add(point("example", f"{__name__}:EXAMPLE"))
    assert list(found.methods) == [*(method.name for method in BUILT_IN), "example"]
    assert found.methods["example"] is EXAMPLE


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("gone", "no_such_module:METHOD", "ModuleNotFoundError"),
        ("gone", f"{__name__}:NO_SUCH", "AttributeError"),
        ("gone", f"{__name__}:example", "this is function, not a Method"),
        ("needy", f"{__name__}:NEEDY", "needs is 'retrieval'; it must be a tuple of retrieval, layer, .*"),
        ("taken", f"{__name__}:TAKEN", "ExampleSettings or its section belongs to another method"),
        ("reused", f"{__name__}:REUSED", "PldConfig or its section belongs to another method"),
        ("gone", f"{__name__}:EXAMPLE", "its name is 'example'; it must be"),
        ("Ex+ample", f"{__name__}:ODD_NAME", "its name is"),
    ],
)
def test_a_package_that_cannot_be_used_is_refused_and_harms_no_other_method(name: str, value: str, reason: str) -> None:
    found = Catalogue()
    found.add(point(name, value))
    assert list(found.methods.values()) == list(BUILT_IN)
    assert re.search(reason, found.refused[name])


def test_a_method_with_the_name_of_another_is_not_used() -> None:
    found = Catalogue()
    found.add(point("pld", f"{__name__}:PLD_AGAIN"))
    assert list(found.methods.values()) == list(BUILT_IN)
    assert "pld" not in found.refused


def test_a_request_for_a_refused_method_gets_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue().refused, "gone", "importing it failed")
    with pytest.raises(UnknownMethodError, match="'gone' is not available: importing it failed; available"):
        method_names("pld+gone")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"count": 0}, "count is 0; it must be at least 1"),
        ({"count": 9}, "count is 9; it must be below 9"),
        ({"share": 0.0}, "share is 0.0; it must be above 0.0"),
        ({"share": float("nan")}, "share is nan; it must be above 0.0"),
        ({"share": 1.5}, "share is 1.5; it must be at most 1.0"),
        ({"kind": "even"}, "kind is 'even'; it must be one of plain, odd"),
        ({"limit": -1}, "limit is -1; it must be at least 0"),
        ({"kind": "odd", "count": 2}, "count is 2; it must be odd"),
    ],
    ids=str,
)
def test_a_setting_out_of_bounds_is_refused_with_what_is_allowed(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ExampleSettings(**given)
    assert str(refused.value) == says


def test_every_setting_of_the_built_in_methods_is_described() -> None:
    for name, section in settings_sections().items():
        described = [one for one in fields(section.settings) if one.metadata.get("description")]
        assert described, name
        assert all(one in described or one.name == "path" for one in fields(section.settings)), name
    for method in BUILT_IN:
        assert method.description
        assert not method.description.endswith(".")
