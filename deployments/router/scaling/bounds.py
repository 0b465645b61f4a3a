"""Bounds of the number of pipelines that are changed while a router serves: ``user_config`` of its deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.options import ScalingOptions
from engine.errors import ConfigError

LEAST, MOST = "min_replicas", "max_replicas"


def bounds_of(given: Mapping[str, Any], options: ScalingOptions) -> tuple[int, int]:
    """The least and the most pipelines that ``user_config`` asks for; what it does not name is as ``args`` say.

    Raises:
        ConfigError: a key is unknown, or a number is not between those of ``args``.
    """
    for key in given:
        if key not in (LEAST, MOST):
            raise ConfigError(f"Router.user_config.{key} is unknown; it has {LEAST} and {MOST}")
    least, most = given.get(LEAST, options.least), given.get(MOST, options.most)
    for key, value in ((LEAST, least), (MOST, most)):
        if type(value) is not int or not options.least <= value <= options.most:
            within = f"an integer from {options.least} to {options.most}, the bounds in args"
            raise ConfigError(f"Router.user_config.{key} is {value!r}; it must be {within}")
    if least > most:
        raise ConfigError(f"Router.user_config.{LEAST} is {least}; it must be at most {MOST}, which is {most}")
    return least, most
