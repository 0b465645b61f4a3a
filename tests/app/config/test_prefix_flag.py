"""The prefix cache is on unless a flag or a key says otherwise."""

from __future__ import annotations

import pytest

from app.cli import parser
from app.commands.serve import config_from
from app.composition.pipeline import router_options
from app.config.serve import ServeConfig


@pytest.mark.parametrize(("flags", "is_on"), [([], True), (["--prefix-cache", "false"], False)])
def test_the_flag_reaches_the_scheduler(flags: list[str], is_on: bool) -> None:
    assert router_options(config_from(parser().parse_args(["serve", *flags]))).scheduler.prefix_cache is is_on
    assert router_options(ServeConfig(prefix_cache=is_on)).scheduler.prefix_cache is is_on
