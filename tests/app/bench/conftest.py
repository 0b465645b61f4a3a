"""A tiny real target for the tests that measure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.target.local import LocalTarget
from engine.target.options import GIB, TargetOptions


@pytest.fixture(scope="module")
def target(tiny_checkpoint: Path) -> Iterator[LocalTarget]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield LocalTarget.load(TargetOptions(str(tiny_checkpoint), kv_bytes=GIB // 16), tiny_checkpoint)
    torch.set_num_threads(before)
