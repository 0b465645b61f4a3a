"""A password in ``retrieval`` is shown by no error of a configuration; other values are."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.commands.serve import config_from
from app.config.serve import ServeConfig
from engine.errors import ConfigError

URL = "redis://user:secret@host/0"


def _as_yaml(value: Any) -> Any:
    return json.loads(value) if str(value).startswith("{") else value


@pytest.mark.parametrize(
    "wrong", [{"device": "cuda"}, {"live": "a b"}, {"draft_model_options": '{"path": "x"}'}, {"max_nodes": -1}]
)
def test_no_error_of_a_configuration_shows_a_password(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ServeConfig(retrieval=URL, **{key: _as_yaml(value) for key, value in wrong.items()})
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError) as said:
        config_from(argparse.Namespace(retrieval=URL, **wrong))
    assert "secret" not in str(said.value)


def test_an_error_of_a_flag_names_the_value() -> None:
    with pytest.raises(ConfigError, match=r"^--max-nodes is many; it must be an integer$"):
        config_from(argparse.Namespace(max_nodes="many"))


def test_half_a_url_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match=r"^--retrieval: '//' is missing") as said:
        config_from(argparse.Namespace(retrieval="redis:/user:secret@host"))
    assert "secret" not in str(said.value)


@pytest.mark.parametrize("name", ["..", ".a"])
def test_a_namespace_begins_with_no_dot(name: str) -> None:
    with pytest.raises(ValidationError):
        ServeConfig(retrieval_namespace=name)
    with pytest.raises(ValidationError, match=r"no '\.' first"):
        ServeConfig(live=name)
