"""Can this machine compile kernels, what do launches and copies cost it, and does it draw the noise that NumPy draws?

Decides whether kernels of our own can be built here (gcc, Python's headers, Triton), how much a CUDA graph saves, and
against which bandwidth the other checks' figures stand. The noise must be NumPy's but for about one value in 2**28,
which is one fp32 step off (two fp64 logarithms may differ in the last bit); equal scores must go to the lowest id.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.measuring.clock import copy_bandwidth, graphed, queued, waited
from benchmarks.gpu.measuring.rows import Row, Rows
from benchmarks.gpu.setting import Report, Setting
from engine.sampling.noise import gumbel, gumbel_row

VOCAB = 128256
NOISE_VALUES = 100_000_000
NOISE_KEYS = 8  # at once
LAUNCHES = 1000
COPIED = (4 << 10, 64 << 10, 1 << 20, 256 << 20)  # bytes: a step's plan, the largest mask that does not wait, weights


def run(setting: Setting) -> Report:
    """Everything, each part on its own."""
    rows = Rows(setting, "probe: the machine", {"what": "what", "value": "value", "unit": "unit"})
    for name, measure in (
        ("tools", tools),
        ("bandwidth", bandwidth),
        ("launches", launches),
        ("copies", copies),
        ("argmax", ties),
        ("noise", noise),
        ("a Triton kernel", triton_kernel),  # last: a fault of it would be the others' as well
    ):
        rows.attempt(name, partial(measure, setting))
    return rows.report(*notes(setting))


def notes(setting: Setting) -> list[str]:
    """What has to be known to read the table."""
    said = ["A copy counts bytes read and written. A launch is of a kernel that adds 1 to 1,024 numbers."]
    if not setting.on_cuda:
        said.append("On a CPU: no graphs, no pinned memory, and the noise is NumPy's own.")
    return said


def tools(setting: Setting) -> list[Row]:
    """What kernels are built with."""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    found = {name: shutil.which(name) for name in ("gcc", "nvcc", "ncu", "compute-sanitizer")}
    rows: list[Row] = [_row(name, path or "missing") for name, path in found.items()]
    rows.append(_row("Python headers", str(headers) if headers.exists() else "missing"))
    if setting.on_cuda:
        properties = torch.cuda.get_device_properties(setting.device)
        capability = f"{properties.major}.{properties.minor}, {properties.multi_processor_count} multiprocessors"
        rows += [_row("GPU", properties.name), _row("compute capability", capability), _row("driver", _driver())]
    return rows


def _row(what: str, value: str | float, unit: str = "") -> Row:
    return {"what": what, "value": value, "unit": unit}


def _driver() -> str:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    if shutil.which(asked[0]) is None:
        return "unknown"
    return subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout.strip()


def triton_kernel(setting: Setting) -> list[Row]:
    """Whether one is compiled, for which Triton needs a compiler and headers at run time, and adds right."""
    return [_row("a Triton kernel", _triton_works(setting))]


def _triton_works(setting: Setting) -> str:
    if find_spec("triton") is None:
        return "not run: no triton"
    if not setting.on_cuda:
        return "not run: no CUDA device"
    from benchmarks.gpu.measuring.persistent_gemm import Tiling, product

    x, weight = (torch.eye(64, dtype=setting.dtype, device=setting.device) for _ in range(2))
    try:
        right = torch.equal(product(x, weight, Tiling(block_n=64, split_k=1)), x)
    except Exception as error:  # of many kinds
        return f"FAILED: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "runs" if right else "runs and is WRONG"


def bandwidth(setting: Setting) -> list[Row]:
    """Of the device's memory."""
    return [_row("copy on the device", copy_bandwidth(setting) / 1e12, "TB/s")]


def launches(setting: Setting) -> list[Row]:
    """Microseconds each."""
    numbers = torch.zeros(1024, device=setting.device)

    def one() -> Tensor:
        return numbers.add_(1)

    n = 10 if setting.tiny else LAUNCHES
    rows = [
        _row("launch, eager", queued(setting, one, n) * 1e6, "us"),
        _row("launch and wait", waited(setting, one, 10 if setting.tiny else 200) * 1e6, "us"),
    ]
    if setting.on_cuda:
        replay = graphed(one, LAUNCHES)
        rows.append(_row(f"launch, in a graph of {LAUNCHES}", queued(setting, replay, 20) / LAUNCHES * 1e6, "us"))
        rows.append(_row("graph of one launch, and wait", waited(setting, graphed(one), 200) * 1e6, "us"))
    return rows


def copies(setting: Setting) -> list[Row]:
    """Between host and device, until the host has it back: microseconds, by size and kind of the host's memory."""
    rows: list[Row] = []
    runs = 3 if setting.tiny else 50
    for n in COPIED[:2] if setting.tiny else COPIED:
        there = torch.zeros(n, dtype=torch.uint8, device=setting.device)
        for kind in ("pinned", "pageable"):
            here = torch.zeros(n, dtype=torch.uint8, pin_memory=kind == "pinned" and setting.on_cuda)
            for way, call in (("to the device", _copy(there, here)), ("to the host", _copy(here, there))):
                seconds = waited(setting, call, runs if n < 1 << 28 else 5)
                rows.append(_row(f"{n >> 10} KiB {way}, {kind}", seconds * 1e6, "us"))
    numbers = list(range(65))
    made = waited(setting, lambda: torch.tensor(numbers, device=setting.device), runs)
    rows.append(_row("a tensor of 65 numbers from a list", made * 1e6, "us"))
    there = torch.zeros(65, dtype=torch.int64, device=setting.device)
    rows.append(_row("65 numbers to a list", waited(setting, there.tolist, runs) * 1e6, "us"))
    return rows


def _copy(to: Tensor, source: Tensor) -> Callable[[], Any]:
    return lambda: to.copy_(source, non_blocking=True)


def ties(setting: Setting) -> list[Row]:
    """Rows whose argmax is not NumPy's, which is the lowest id of the best: rows of few different values."""
    vocab, rows_each = (1000, 3) if setting.tiny else (VOCAB, 65)
    random = np.random.default_rng(0)
    wrong = total = 0
    for n_values in (1, 2, 3, 1000):
        for dtype in (torch.float32, torch.bfloat16):
            values = torch.from_numpy(random.integers(0, n_values, (rows_each, vocab))).to(dtype)
            expected = values.float().numpy().argmax(-1)
            for n in (1, rows_each):  # kernels split their work by the number of rows
                found = values[:n].to(setting.device).argmax(-1).cpu().numpy()
                wrong += int((found != expected[:n]).sum())
                total += n
    return [_row(f"argmax of ties not at the lowest id, of {total}", wrong, "rows")]


def noise(setting: Setting) -> list[Row]:
    """Values of the device that are not NumPy's. More than one fp32 step off, the integers below them were wrong."""
    vocab, turns = (1000, 2) if setting.tiny else (VOCAB, NOISE_VALUES // (VOCAB * NOISE_KEYS) + 1)
    other, worst, total = 0, 0, 0
    for turn in range(turns):
        if setting.left < 0:
            break
        keys = [(turn, choice, 31 * turn + choice) for choice in range(NOISE_KEYS)]
        here = np.stack([gumbel_row(key, vocab) for key in keys])
        there = gumbel(keys, vocab, setting.device).cpu().numpy()
        steps = np.abs(_ordered(here) - _ordered(there))
        other, worst, total = other + int((steps > 0).sum()), max(worst, int(steps.max())), total + steps.size
    return [
        _row(f"noise that is not NumPy's, of {total:,}", other, "values"),
        _row("the largest difference", worst, "fp32 steps"),
    ]


def _ordered(values: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """fp32 -> int64 such that neighbouring numbers are neighbours."""
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
