"""What a configuration says of a trained drafter, and what it may not say."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.composition.pipeline import target_options, trained_drafter
from app.config.serve import ServeConfig
from engine.drafter.settings import DrafterSettings


def test_a_drafter_reaches_the_target() -> None:
    config = ServeConfig(drafter="org/drafter", drafter_layers="-1,3,12", drafter_options={"depth": 4})
    wanted = DrafterSettings("org/drafter", (-1, 3, 12), depth=4)
    assert trained_drafter(config) == target_options(config).drafter == wanted
    assert trained_drafter(ServeConfig()) is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"drafter_layers": "1,2"}, "drafter_layers needs a drafter, none is named"),
        ({"drafter_options": {"depth": 3}}, "drafter_options needs a drafter, none is named"),
        ({"drafter": "d", "drafter_layers": "first"}, "drafter_layers is 'first'; it must be layers' numbers"),
        (
            {"drafter": "d", "drafter_options": {"width": 3}},
            "drafter_options has no setting 'width'; it has beam, depth",
        ),
        ({"drafter": "d", "drafter_options": {"beam": 33}}, "beam is 33; it must be 1 to 32"),
        ({"drafter": "d", "drafter_options": {"depth": "3"}}, "depth is '3'; it must be a whole number"),
        ({"drafter": "d", "drafter_options": {"depth": True}}, "depth is True; it must be a whole number"),
    ],
    ids=str,
)
def test_wrong_fields_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says.replace("'", ".")):
        ServeConfig(**fields)
