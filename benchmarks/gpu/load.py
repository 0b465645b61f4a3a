"""How fast do weights come from this machine's disk onto the device, and what do the threads that read them bring?

A checkpoint of some layers of Llama 70B geometry is written to the temporary folder, read with the loader of a stage
(16 threads, 4 and 1) and with safetensors' own reader, in turns, from the page cache and from the disk, and removed. A
replaced stage reads from the page cache where its node has the memory; a new node reads from its disk. Before a read
from the disk the system is asked to forget the files; where it does not, both rows show the same.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.gpu.measuring.geometry import LLAMA_70B, Geometry, sized
from benchmarks.gpu.measuring.loading import forget, seconds_library, seconds_ours, write_checkpoint
from benchmarks.gpu.measuring.rows import Rows
from benchmarks.gpu.setting import Report, Setting
from engine.model.ranges import LayerRange

LAYERS = 5  # 8.6 GB, and 4.2 GB of embedding and head
RUNS = 3
COLUMNS = {"source": "from", "reader": "reader", "seconds": "s", "rate": "GB/s"}


def run(setting: Setting) -> Report:
    """Everything, in turns."""
    rows = Rows(setting, "load: weights onto the device", COLUMNS)
    geometry = sized(setting, replace(LLAMA_70B, n_layers=LAYERS))
    with tempfile.TemporaryDirectory(prefix="load-") as parent:
        folder = Path(parent, "checkpoint")
        n_bytes = rows.tried("the checkpoint", partial(write_checkpoint, folder, geometry))
        if n_bytes is not None:
            for source in ("page cache", "disk"):
                measure(rows, folder, source, geometry, n_bytes)
    return rows.report(f"Medians of {1 if setting.tiny else RUNS} runs in turns, of {(n_bytes or 0) / 1e9:.3g} GB.")


def measure(rows: Rows, folder: Path, source: str, geometry: Geometry, n_bytes: int) -> None:
    """Add a row for every reader."""
    setting = rows.setting
    given = (folder, LayerRange(0, geometry.n_layers, geometry.n_layers), setting.device, setting.dtype)
    readers: dict[str, Callable[[], float]] = {
        f"{n} thread{'s' * (n > 1)}": partial(seconds_ours, *given, n_readers=n) for n in (16, 4, 1)
    }
    readers["safetensors"] = partial(seconds_library, *given)
    taken: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(-1, 1 if setting.tiny else RUNS):  # the first is not counted
        for name, load in readers.items():
            if source == "disk":
                forget(folder)
            seconds = rows.tried(f"{name} from the {source}", load)
            if turn >= 0 and seconds is not None:
                taken[name].append(seconds)
    for name, seconds_each in taken.items():
        if seconds_each:
            middle = statistics.median(seconds_each)
            rows.add({"source": source, "reader": name, "seconds": middle, "rate": n_bytes / middle / 1e9})
