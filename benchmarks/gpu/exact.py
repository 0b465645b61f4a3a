"""Does the executor of ``numerics: exact`` write the same bits in every way, and at which price?

The ways of ``texts``, by our kernels: every text and every log-probability must equal the first row's, in bf16 too.
Then steps of the same shapes by Hugging Face's layers and by the executor, one by one.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from benchmarks.gpu.measuring.clock import waited
from benchmarks.gpu.measuring.geometry import LLAMA_8B, sized
from benchmarks.gpu.measuring.random_model import random_model
from benchmarks.gpu.measuring.rows import Row, Rows
from benchmarks.gpu.measuring.steps import Decoding, Shape, limit, local_target
from benchmarks.gpu.measuring.writing import COLUMNS, WAYS, Writer
from benchmarks.gpu.setting import Report, Setting

N_WAYS = 9  # the first: batches, trees, chunks, preemption, two stages
TIMES = {
    "sequences": "sequences",
    "nodes": "nodes",
    "context": "context",
    "fast_ms": "fast, ms",
    "exact_ms": "exact, ms",
    "ratio": "exact / fast",
    "limit_ms": "limit, ms",
}
SHAPES = ((1, 0, 512), (1, 63, 512), (1, 63, 8192), (32, 0, 512), (32, 15, 512))


def shapes(tiny: bool) -> list[Shape]:
    """Steps to time."""
    return [Shape(2, 5, 40)] if tiny else [Shape(*one) for one in SHAPES]


def times(setting: Setting, table: Rows) -> None:
    """Fill in the table of times."""
    geometry = sized(setting, LLAMA_8B)
    model = random_model(geometry, setting.device, setting.dtype)
    calls = 3 if setting.tiny else 30

    def row(shape: Shape) -> list[Row]:
        fast = waited(setting, Decoding(model, shape).step, calls)
        exact = waited(setting, Decoding(model, shape, partial(local_target, exact=True)).step, calls)
        told = {"sequences": shape.sequences, "nodes": shape.nodes, "context": shape.context}
        seconds = {"fast_ms": fast, "exact_ms": exact, "limit_ms": limit(geometry, setting, shape)}
        return [told | {name: 1e3 * took for name, took in seconds.items()} | {"ratio": exact / fast}]

    for shape in shapes(setting.tiny):
        table.attempt(shape.name, partial(row, shape))


def run(setting: Setting) -> Report:
    """Write the texts, then time steps."""
    table = Rows(setting, f"exact: same texts by our kernels, {setting.dtype}", COLUMNS)
    if not setting.on_cuda or find_spec("triton") is None:
        return table.report("Not run: it needs a CUDA device and Triton.")
    writer = Writer(setting, exact=True)
    for way in WAYS[:N_WAYS]:
        table.attempt(way.name, partial(writer.row, way))
    del writer  # its model's memory must be there again
    timed = Rows(setting, f"exact: times of steps, {setting.dtype}", TIMES)
    times(setting, timed)
    return table.report(
        "Anything unequal is a fault. Steps are timed until their tokens are on the host.",
        further=[timed],
    )
