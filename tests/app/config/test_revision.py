"""``--revision``: a commit of the hub is fixed when an application is built, and every process reads that one."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from app.composition.checks import checked, pinned
from app.config.errors import config_of
from app.config.serve import ServeConfig
from app.inputs.models import model_path
from engine.errors import ConfigError
from engine.model.resolve import resolve

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def hub(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offline hub cache with two commits of one model; v1 is the older."""
    repository = tmp_path / "hub" / "models--acme--tiny"
    for commit in (OLD, NEW):
        shutil.copytree(tiny_checkpoint, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(NEW)
    (repository / "refs" / "v1").write_text(OLD)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("hub")
def test_every_part_of_an_application_gets_the_commit_of_the_revision() -> None:
    found = {revision: resolve("acme/tiny", revision).name for revision in (None, "v1", OLD)}
    assert found == {None: NEW, "v1": OLD, OLD: OLD}
    with pytest.raises(ConfigError, match="revision 'v2' of model 'acme/tiny' is neither"):
        resolve("acme/tiny", "v2")
    assert pinned(ServeConfig(model="acme/tiny")).revision == NEW
    assert model_path("acme/tiny", "v1").name == OLD
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing Serve warns
        from app.builder import build_app

        application: Any = build_app(ServeConfig(model="acme/tiny", revision="v1", method="pld", kv_gib=0.01))
    router, _, edge = application._bound_deployment.init_args[:3]
    [target] = router._bound_deployment.init_args[0]
    options = target._bound_deployment.init_args[0]
    assert [options.model, options.revision] == [edge.tokenizer, edge.revision] == ["acme/tiny", OLD]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": ".", "revision": "v1"}, r"revision \(--revision\) is 'v1', but model .* is a directory"),
        ({"model": "acme/tiny@v1"}, r"model is 'acme/tiny@v1'; name its revision with revision \(--revision\)"),
        *(({"model": "acme/tiny", "revision": name}, "revision") for name in ("", "-x", "a b", "../up", "x" * 129)),
    ],
)
def test_a_revision_that_cannot_exist_is_refused_without_asking_the_hub(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        checked(config_of(given))
