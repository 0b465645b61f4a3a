"""A model has as many names as ``--name`` is given, and its hub id is one in any case."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli import parser
from app.commands.serve import config_from
from app.composition.pipeline import aliases
from app.config.errors import config_of
from app.config.serve import ServeConfig
from engine.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "names", "further"),
    [
        ({"model": "org/model-8b"}, ("model-8b",), ("org/model-8b",)),
        ({"model": "org/model-8b", "name": "a"}, ("a",), ("org/model-8b",)),
        ({"model": "org/model-8b", "name": ["org/model-8b", "a", "a"]}, ("org/model-8b", "a"), ("a",)),
        ({"model": "demo"}, ("demo",), ()),
        ({"model": "demo", "name": ["gpt-4o", "demo"]}, ("gpt-4o", "demo"), ("demo",)),
    ],
)
def test_the_first_name_is_shown_and_the_others_count(given, names, further) -> None:
    config = ServeConfig(**given)
    assert config.served_names == names
    assert config.served_name == names[0]
    assert aliases(config) == further


def test_a_directory_is_no_hub_id(tmp_path: Path) -> None:
    config = ServeConfig(model=str(tmp_path))
    assert (config.served_names, aliases(config)) == ((tmp_path.name,), ())


def test_the_flag_may_be_given_several_times() -> None:
    assert config_from(parser().parse_args(["serve", "--name", "a", "--name", "b"])).served_names == ("a", "b")
    assert config_from(parser().parse_args(["serve", "--name", "a"])).served_names == ("a",)


def test_no_name_is_longer_than_requests_may_write_it() -> None:
    with pytest.raises(ConfigError, match="at most 256"):
        config_of({"name": ["ok", "x" * 257]})
