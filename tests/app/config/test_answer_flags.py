"""Flags that say how answers are read."""

from __future__ import annotations

import pytest

from app.api.tools.families import FAMILIES
from app.cli import parser
from app.commands.serve import config_from
from app.config.errors import config_of
from app.config.serve import ServeConfig
from engine.errors import ConfigError


@pytest.mark.parametrize("parser_name", ["auto", "none", *FAMILIES])
def test_every_family_can_be_named(parser_name: str) -> None:
    flags = ["serve", "--tool-parser", parser_name, "--reasoning-parser", "think"]
    config = config_from(parser().parse_args(flags))
    assert (config.tool_parser, config.reasoning_parser) == (parser_name, "think")


def test_by_default_the_template_tells() -> None:
    config = ServeConfig()
    assert (config.tool_parser, config.reasoning_parser) == ("auto", "auto")


def test_an_unknown_family_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"tool_parser is qwen; it must be auto, none, hermes, llama3 or mistral"):
        config_of({"tool_parser": "qwen"})
