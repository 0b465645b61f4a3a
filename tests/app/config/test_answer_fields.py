"""Where kept answers are stored, by the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.composition.answers import answer_options
from app.config.serve import ServeConfig
from engine.errors import ConfigError


def test_answers_are_in_the_redis_that_is_named_or_that_of_the_library_or_in_memory(tmp_path: Path) -> None:
    library, own = "redis://library:6379/0", "redis://user:secret@own:6379/1"
    for fields, store in (
        ({}, ""),
        ({"retrieval": str(tmp_path)}, ""),
        ({"retrieval": library}, library),
        ({"retrieval": library, "answer_store": own}, own),
    ):
        options = answer_options(ServeConfig(name="mine", **fields))
        assert options is not None
        assert (options.store, options.name, "secret" in repr(options)) == (store, "mine", False)
    assert answer_options(ServeConfig(answers_per_tenant=0)) is None


@pytest.mark.parametrize("store", ["/some/folder", "memory://answers", "redis://a,b", "redis+cluster://a/3"])
def test_another_store_is_refused(store: str) -> None:
    with pytest.raises(ConfigError, match=r"answer.store"):
        answer_options(ServeConfig(answer_store=store))
    with pytest.raises(ConfigError, match="answers_per_tenant is 0"):
        answer_options(ServeConfig(answer_store=store, answers_per_tenant=0))
