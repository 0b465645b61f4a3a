"""Bounds that are given to a running router lie within those it was built with, and what is wrong is named."""

from __future__ import annotations

import re
from typing import Any

import pytest

from deployments.options import ScalingOptions
from deployments.router.scaling.bounds import bounds_of
from engine.errors import ConfigError

BUILT = ScalingOptions(least=2, most=5)


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({}, (2, 5)),
        ({"min_replicas": 3}, (3, 5)),
        ({"max_replicas": 2}, (2, 2)),
        ({"min_replicas": 4, "max_replicas": 4}, (4, 4)),
    ],
)
def test_what_is_not_named_is_as_built(given: dict[str, Any], bounds: tuple[int, int]) -> None:
    assert bounds_of(given, BUILT) == bounds


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replicas": 3}, "Router.user_config.replicas is unknown; it has min_replicas and max_replicas"),
        ({"max_replicas": 6}, "Router.user_config.max_replicas is 6; it must be an integer from 2 to 5"),
        ({"min_replicas": 1}, "Router.user_config.min_replicas is 1; it must be an integer from 2 to 5"),
        ({"min_replicas": "3"}, "Router.user_config.min_replicas is '3'; it must be an integer"),
        ({"min_replicas": True}, "Router.user_config.min_replicas is True; it must be an integer"),
        ({"min_replicas": 4, "max_replicas": 3}, "Router.user_config.min_replicas is 4; it must be at most"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        bounds_of(given, BUILT)
