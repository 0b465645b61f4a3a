"""Where router, HTTP processes and retrieval run: resources by name, checked before Ray hears of them."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from app.commands.serve import config_from
from app.config.errors import config_of
from engine.errors import ConfigError


def test_a_flag_is_a_json_object_and_a_key_of_a_file_is_one_already() -> None:
    assert config_from(argparse.Namespace(edge_resources='{"edge": 0.01}')).edge_resources == {"edge": 0.01}
    given = {"edge": 1, "rack-7.a": "0.5"}
    assert config_of({"edge_resources": given}).edge_resources == {"edge": 1.0, "rack-7.a": 0.5}
    assert config_of({}).edge_resources == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("edge", "--edge-resources is 'edge': not a JSON object"),
        ("[]", "--edge-resources is []; it must be a JSON object"),
        ('{"edge": "much"}', "--edge-resources is much; it must be a number"),
        ('{"edge": 0}', "--edge-resources names edge with 0; it must be 0.0001 to 1000"),
        ('{"edge": -1}', "--edge-resources names edge with -1; it must be 0.0001 to 1000"),
        ('{"edge": 1e9}', "--edge-resources names edge with 1e+09; it must be 0.0001 to 1000"),
        ('{"edge": 0.00015}', "--edge-resources names edge with 0.00015; it must be 0.0001 to 1000, in steps"),
        ('{"edge": NaN}', "--edge-resources names edge with nan; it must be"),
        ('{"CPU": 1}', "--edge-resources names 'CPU'; it must be a custom resource's name"),
        ('{"": 1}', "--edge-resources names ''; it must be a custom resource's name"),
        (str({f"r{i}": 1 for i in range(9)}).replace("'", '"'), "--edge-resources names 9 resources; it may name 8"),
    ],
)
def test_what_ray_would_not_grant_is_refused_by_name(given: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(argparse.Namespace(edge_resources=given))
    assert str(caught.value).startswith(says)


def test_settings_of_a_drafter_are_a_json_object_on_the_command_line_too() -> None:
    flags: dict[str, Any] = {"drafter": "org/drafter", "drafter_options": '{"depth": 3}'}
    assert config_from(argparse.Namespace(**flags)).drafter_options == {"depth": 3}
