"""Sizes that follow from a drafter's description and its settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.drafter.settings import DrafterSettings, scratch_slots
from engine.errors import ConfigError
from tests.support.tiny_drafters import PARALLEL


def test_a_drafter_without_a_number_of_drafts_is_refused_with_the_field_to_add() -> None:
    spec = PARALLEL["p-eagle"]
    assert scratch_slots(spec, DrafterSettings("")) == 5
    with pytest.raises(ConfigError, match="speculative_tokens"):
        scratch_slots(replace(spec, n_drafts=None), DrafterSettings(""))
