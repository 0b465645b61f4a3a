"""How long stages take to read their weights, by reader, dtype and number of stages, with and without the page cache.

    python -m benchmarks.load_time --gib 2 --stages 1,2
    python -m benchmarks.load_time --gib 1 --stages 1 --dtypes float32 --latency-ms 20      # storage that is far

A checkpoint of random weights in bf16 is written to a temporary folder and removed afterwards. Readers take turns. A
stage is a process of its own, and stages read at the same time: shown is the slowest one, until every page of its
weights has been touched once. In bfloat16 a CPU keeps the file's own memory, in float32 every weight is cast. "disk":
the system is asked to forget the files before each run. With --latency-ms every read of ours waits so long before it
begins; the library's cannot be delayed so, and is left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from app.reporting.report import markdown
from benchmarks.gpu.measuring.models import LLAMA_8B, Geometry
from benchmarks.processes.weight_loading import far, forget, seconds_library, seconds_ours, write_checkpoint
from engine.model.ranges import LayerRange, split_layers

LIBRARY = 0  # in place of a number of threads
HEADINGS = ("dtype", "from", "stages", "reader", "s, least", "s, median", "GiB/s")


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.load_time", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=2.0, help="GiB of weights, about (default: 2)")
    parser.add_argument("--folder", type=Path, help="where they are written for the time (default: the system's)")
    parser.add_argument("--stages", default="1,2", help="numbers of stages (default: 1,2)")
    parser.add_argument("--dtypes", default="bfloat16,float32", help="of the loaded weights")
    parser.add_argument("--readers", default="16,4,1", help="threads of our reader (default: 16,4,1)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--runs", type=int, default=5, help="of each (default: 5)")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="that each of our reads waits (default: 0)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    asked = parsed(arguments)
    with tempfile.TemporaryDirectory(prefix="load-", dir=asked.folder) as parent:
        folder = Path(parent, "checkpoint")
        geometry = geometry_of(asked.gib)
        n_bytes = write_checkpoint(folder, geometry)
        readers = [int(one) for one in asked.readers.split(",")] + ([] if asked.latency_ms else [LIBRARY])
        rows = []
        for n_stages in map(int, asked.stages.split(",")):
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(n_stages, context) as stages:
                for dtype in asked.dtypes.split(","):
                    for source in ("page cache", "disk"):
                        ranges = split_layers(geometry.n_layers, n_stages)
                        given = (folder, asked.device, dtype, asked.latency_ms / 1e3)
                        rows += measure(stages, ranges, source, readers, given, asked.runs, n_bytes)
    print(markdown(HEADINGS, rows, n_names=4))


def geometry_of(gib: float) -> Geometry:
    """About so large a model: layers as of Llama 8B, 416 MiB each in bf16, and at least two small ones."""
    n_layers = max(2, round((gib * 1024 - 250) / 416))
    if gib >= 1:
        return Geometry("", LLAMA_8B.hidden, LLAMA_8B.intermediate, n_layers, 32, 8, 128, 16000)
    return Geometry("", 256, 1024, 2, 4, 2, 64, 512)


def measure(
    stages: ProcessPoolExecutor, ranges: list[LayerRange], source: str, readers: list[int],
    given: tuple[Path, str, str, float], runs: int, n_bytes: int,
) -> list[list[str]]:  # fmt: skip
    """Rows of one setting; the readers take turns, and change their order."""
    taken: dict[int, list[float]] = {reader: [] for reader in readers}
    for turn in range(-1, runs):  # the first is not counted: processes import, files are cached
        for reader in readers if turn % 2 else reversed(readers):
            if source == "disk":
                forget(given[0])
            slowest = max(stages.map(one_stage, ranges, [reader] * len(ranges), [given] * len(ranges)))
            if turn >= 0:
                taken[reader].append(slowest)
    rows = []
    for reader, seconds in taken.items():
        name = "safetensors" if reader == LIBRARY else f"{reader} thread{'s' * (reader > 1)}"
        middle = statistics.median(seconds)
        rate = n_bytes / middle / (1 << 30)
        figures = [f"{min(seconds):.2f}", f"{middle:.2f}", f"{rate:.2f}"]
        rows.append([given[2], source, str(len(ranges)), name, *figures])
    return rows


def one_stage(layers: LayerRange, reader: int, given: tuple[Path, str, str, float]) -> float:
    """Seconds of one stage; runs in its process."""
    torch.set_num_threads(1)
    folder, device, dtype, latency = given
    wanted = (folder, layers, torch.device(device), getattr(torch, dtype))
    with far(latency):
        return seconds_library(*wanted) if reader == LIBRARY else seconds_ours(*wanted, n_readers=reader)


if __name__ == "__main__":
    main()
