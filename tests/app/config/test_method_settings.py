"""Settings of methods, by key and by flag."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.cli import parser
from app.commands.serve import config_from
from app.composition.speculation import speculator_options
from app.config.errors import config_of
from app.config.flags import flag
from app.config.serve import ServeConfig
from engine.errors import ConfigError, UnknownMethodError
from speculators.auto.config import AutoConfig
from speculators.mixing.combined import CombinationConfig
from speculators.ngrams.suffix import SuffixConfig
from speculators.peers.goose import GooseConfig
from speculators.settings import Settings
from speculators.successors.config import SuccessorConfig
from speculators.successors.token_recycling import TokenRecyclingConfig

SETTINGS: dict[str, tuple[dict[str, Any], Settings]] = {
    "auto": (
        {"loss": 0.02, "sources": ["pld"]},
        AutoConfig(sources=("pld",), loss=0.02),
    ),
    "successors": (
        {"top_k": 4, "text_orders": [1, 2], "shared": True},
        SuccessorConfig(top_k=4, text_orders=(1, 2), shared=True),
    ),
    "suffix": ({"mode": "paper", "max_draft": 9}, SuffixConfig(mode="paper", max_draft=9)),
    "goose": ({"ngrams": [4, 2], "ratios": [0, 0.1, 1]}, GooseConfig(ngrams=(4, 2), ratios=(0.0, 0.1, 1.0))),
    "token_recycling": ({"mode": "paper", "depth": 3}, TokenRecyclingConfig(mode="paper", depth=3)),
    "combination": ({"probe_share": 0.5}, CombinationConfig(0.5)),
}
WRONG = [
    ("auto", "loss", "much"),
    ("auto", "loss", 0),
    ("auto", "sources", ["auto"]),
    ("successors", "top_k", 0),
    ("successors", "text_orders", [2, 1]),
    ("suffix", "mode", "fast"),
    ("adapld", "branches", -1),
    ("prediction", "least", 0),
    ("goose", "ngrams", [2, 4]),
    ("stand", "noise", "white"),
    ("token_recycling", "depth", 0),
    ("combination", "probe_share", 2),
]


def served(section: str, given: dict[str, Any], *more: str) -> ServeConfig:
    return config_from(parser().parse_args(["serve", flag(section), json.dumps(given), *more]))


@pytest.mark.parametrize("section", SETTINGS)
def test_settings_reach_their_method_and_unknown_ones_are_refused(section: str) -> None:
    given, expected = SETTINGS[section]
    plain = ServeConfig(retrieval="none")  # the built-in texts are then no source of auto
    by_key = config_of({section: given, "retrieval": "none"})
    for config in (by_key, served(section, given, "--retrieval", "none")):
        assert speculator_options(config).settings_of(type(expected)) == expected
    assert speculator_options(plain).settings_of(type(expected)) == type(expected)()
    says = f"{section}: frobnicate is unknown; it has "
    with pytest.raises(ConfigError, match=says):
        config_of({section: {"frobnicate": 1}})
    with pytest.raises(ConfigError, match=says.replace(section, flag(section))):
        served(section, {"frobnicate": 1})


@pytest.mark.parametrize(("section", "field", "value"), WRONG, ids=str)
def test_a_setting_out_of_range_is_refused_by_name(section: str, field: str, value: Any) -> None:
    says = f"{section.replace('_', '[-_]')}: .*{field}"
    with pytest.raises(ConfigError, match=says):
        config_of({section: {field: value}})
    with pytest.raises(ConfigError, match=says):
        served(section, {field: value})


def test_sources_of_auto_are_names_of_methods() -> None:
    with pytest.raises(UnknownMethodError, match="unknown method 'nonsense'"):
        served("auto", {"sources": ["pld", "nonsense"]})


def test_a_draft_model_inherits_no_numerics_that_it_cannot_use() -> None:
    config = config_of({"device": "cuda", "stage_gpus": 1, "numerics": "layers", "retrieval": "none"})
    assert config.draft_model_settings["numerics"] == "auto"
