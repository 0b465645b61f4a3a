"""``--revision``: a commit of the hub is fixed when an application is built, and every process reads that one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.composition.checks import checked
from app.config.serve import ServeConfig
from engine.errors import ConfigError
from engine.model.resolve import resolve, revision_of

ROOT = Path(__file__).parents[3]
OLD, NEW = "a" * 40, "b" * 40

PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
from app.builder import build_app
from app.inputs.models import model_path
from app.composition.checks import pinned
from app.config.serve import ServeConfig
from engine.errors import ConfigError
from engine.model.resolve import resolve

found = {str(revision): resolve("acme/tiny", revision).name for revision in (None, "v1", sys.argv[1])}
try:
    resolve("acme/tiny", "v2")
except ConfigError as error:
    found["v2"] = str(error)
config = ServeConfig(model="acme/tiny", revision="v1", method="pld", kv_gib=0.01)
ingress = build_app(config)._bound_deployment
router, _, edge = ingress.init_args[:3]
[target] = router._bound_deployment.init_args[0]
options = target._bound_deployment.init_args[0]
found["parts"] = [options.model, options.revision, edge.tokenizer, edge.revision]
found["unnamed"] = pinned(ServeConfig(model="acme/tiny")).revision
found["model"] = str(model_path("acme/tiny", "v1").name)
print(json.dumps(found))
"""


@pytest.fixture
def hub(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A hub's cache, as a machine without a network has it, with two commits of one model; v1 is the older."""
    repository = tmp_path / "hub" / "models--acme--tiny"
    for commit in (OLD, NEW):
        shutil.copytree(tiny_checkpoint, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(NEW)
    (repository / "refs" / "v1").write_text(OLD)
    return tmp_path / "hub"


def test_every_process_is_told_the_commit_of_the_revision(hub: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, OLD]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [found[name] for name in ("None", "v1", OLD, "model", "unnamed")] == [NEW, OLD, OLD, OLD, NEW]
    assert found["v2"].startswith("revision 'v2' of model 'acme/tiny' is neither")
    assert found["parts"] == ["acme/tiny", OLD, "acme/tiny", OLD]


@pytest.mark.parametrize("model", ["demo", "directory"])
def test_a_directory_has_no_revisions(model: str, tiny_checkpoint: Path) -> None:
    named = str(tiny_checkpoint) if model == "directory" else model
    with pytest.raises(ConfigError, match=r"revision \(--revision\) is 'v1', but model .* is a directory"):
        checked(ServeConfig(model=named, revision="v1"))
    with pytest.raises(ConfigError, match="--revision"):
        resolve(str(tiny_checkpoint), "v1")


def test_the_target_names_its_revision_by_its_own_field_alone() -> None:
    with pytest.raises(ConfigError, match=r"model is 'acme/tiny@v1'; revision \(--revision\) names a revision"):
        checked(ServeConfig(model="acme/tiny@v1"))


@pytest.mark.parametrize("revision", ["", "-x", "a b", "../up", "x" * 129])
def test_what_can_be_no_revision_is_refused_at_once(revision: str) -> None:
    with pytest.raises(ValidationError, match="revision"):
        ServeConfig(model="acme/tiny", revision=revision)


def test_only_a_snapshot_of_the_hub_has_a_commit(tmp_path: Path) -> None:
    assert revision_of(tmp_path / "snapshots" / OLD) == OLD
    assert [revision_of(tmp_path / name) for name in (OLD, "snapshots", "snapshots/main")] == ["", "", ""]
