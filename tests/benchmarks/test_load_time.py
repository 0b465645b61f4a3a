"""The measurement of reading weights runs, small, and its readers load the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import load_time
from benchmarks.gpu.measuring import loading
from benchmarks.load_time import geometry_of, main
from engine.model.ranges import LayerRange

CPU = torch.device("cpu")


def test_every_reader_stage_and_source_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--gib", "0.01", "--stages", "2", "--runs", "1", "--readers", "2", "--folder", str(tmp_path)])
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [
        [dtype, source, "2", reader]
        for dtype in ("bfloat16", "float32")
        for source in ("page cache", "disk")
        for reader in ("2 threads", "safetensors")
    ]
    assert not [*tmp_path.iterdir()]


def test_the_readers_load_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[int] = []
    monkeypatch.setattr(loading, "_touch", lambda weights, _: touched.append(sum(weight.nbytes for weight in weights)))
    loading.write_checkpoint(tmp_path / "checkpoint", geometry_of(0.01))
    for layers in (LayerRange(0, 1, 2), LayerRange(1, 2, 2), LayerRange(0, 2, 2)):
        for load in (loading.seconds_ours, loading.seconds_library):
            load(tmp_path / "checkpoint", layers, CPU, torch.float32)
        assert touched[-1] == touched[-2] > 0


def test_storage_that_is_far_takes_longer(tmp_path: Path) -> None:
    loading.write_checkpoint(tmp_path / "checkpoint", geometry_of(0.01))
    given = (tmp_path / "checkpoint", LayerRange(0, 2, 2), CPU, torch.float32)
    with loading.far(0.3):
        assert loading.seconds_ours(*given) > 0.3
    assert load_time.parsed([]).latency_ms == 0
