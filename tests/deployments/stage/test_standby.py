"""What a process does while it waits to be a stage: all that loading begins with, but for the weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deployments.stage.actor import StageActor
from engine.errors import UnsupportedModelError
from engine.target.options import TargetOptions

SCRIPT = """
import sys
from pathlib import Path
from deployments.pipeline.plan import StagePlan
from deployments.stage.actor import StageActor
from engine.model.ranges import LayerRange
from engine.target.loading import describe_target
from engine.target.options import TargetOptions

path = sys.argv[1]
options = TargetOptions(path, kv_bytes=1 << 22, block_size=16)
actor = StageActor(options, 1, "unix")
if sys.argv[2] == "prepared":
    actor.prepare()
plan = StagePlan(describe_target(options, Path(path)), (LayerRange(0, 2, 4), LayerRange(2, 4, 4)))
before = set(sys.modules)
actor.load(plan, 1)
print(len({name for name in set(sys.modules) - before if name.startswith("transformers")}))
"""


def imported_by_loading(checkpoint: Path, how: str) -> int:
    command = [sys.executable, "-c", SCRIPT, str(checkpoint), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def test_a_process_that_waited_imports_nothing_to_load(tiny_checkpoint: Path) -> None:
    assert imported_by_loading(tiny_checkpoint, "prepared") == 0
    assert imported_by_loading(tiny_checkpoint, "fresh") > 0


def test_a_process_that_cannot_read_the_checkpoint_says_so_before_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    actor = StageActor(TargetOptions(str(tmp_path)), 1, "unix")
    with pytest.raises(UnsupportedModelError, match="holds no config of a supported model"):
        actor.prepare()
