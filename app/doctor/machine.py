"""Checks GPUs and folders of the machine."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import spectra_serve
from app.doctor import Finding, Status
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.devices import default_threads, has_cuda_device
from app.inputs.models import texts_path
from engine.errors import SpectraError
from engine.kept_files import cache_folder
from engine.model.partition import GIB
from engine.target_model.numerics import find_numerics, missing_tools
from engine.target_model.options import LAYERS, TargetOptions

MIB = 1 << 20
DRIVER = Path("/proc/driver/nvidia/version")
SHARED = Path("/dev/shm")
OBJECT_STORE = 128 * MIB  # that a server's own Ray uses


def check_gpus() -> Iterator[Finding]:
    """Yield one finding for each GPU, or one without any that torch can use."""
    import torch

    built = torch.version.cuda
    if not has_cuda_device():
        yield Finding("gpu", "ok", f"no GPU; --device is cpu, and --threads {default_threads()} unless given")
    elif built is None:
        says = f"there is one, but torch {torch.__version__} is built without CUDA"
        yield Finding("gpu", "problem", says, "install torch from its index of CUDA wheels")
    elif not torch.cuda.is_available():
        says = f"torch (CUDA {built}) cannot use it"
        yield Finding("gpu", "problem", says, f"check that the driver is new enough: {_driver()}")
    else:
        for i in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(i)
            name = torch.cuda.get_device_name(i)
            says = f"{name}, {free / GIB:.1f} of {total / GIB:.1f} GiB free; CUDA {built}, {_driver()}"
            yield Finding(f"gpu {i}", "ok", says)


def _driver() -> str:
    found = None
    with contextlib.suppress(OSError):
        found = re.search(r"\s(\d+\.[\d.]+)\s", DRIVER.read_text(encoding="utf-8"))
    return f"driver {found[1] if found else 'unknown'}"


def check_numerics(model: str | None, dtype: str | None, quantization: str | None) -> Finding:
    """Return what ``--numerics auto`` would choose; on a GPU this tests the kernels with random weights.

    Args:
        model: whose sizes are tested; None: those of the default model.
        dtype, quantization: as for ``spectra serve``.
    """
    import torch

    if not torch.cuda.is_available():
        more = missing_tools()
        says = "no GPU: auto is Hugging Face's layers on a CPU; on a GPU, kernels are tested at load"
        return Finding("numerics", "ok", f"{says}; {more}" if more else says)
    try:
        path = texts_path(model or DEFAULT_MODEL)
        options = TargetOptions(str(path), device="cuda", dtype=dtype, quantization=quantization)
        found = find_numerics(options, path)
    except SpectraError as error:  # which the finding "model" reports
        return Finding("numerics", "warning", f"not tested: {error}")
    tested = "" if model else "; tested with the sizes of the default model: --model tests those of another"
    return Finding("numerics", "warning" if found.numerics == LAYERS else "ok", f"auto is {found}{tested}")


def check_folders() -> Iterator[Finding]:
    """Yield findings on shared memory, the cache and the temporary folder."""
    yield _check_shared_memory()
    remedy = "set XDG_CACHE_HOME: step times and indexes are kept there"
    yield _check_writable("cache", cache_folder(), remedy, "warning")
    found = _check_writable("temporary files", Path(tempfile.gettempdir()), "set TMPDIR", "problem")
    if unused := spectra_serve.UNUSED_TMPDIR:
        why = f"it is longer than {spectra_serve.LONGEST_TEMPORARY} bytes, too long for sockets"
        found = replace(found, says=f"{found.says}; TMPDIR {unused} is not used: {why}")
    yield found


def _check_shared_memory() -> Finding:
    try:
        disk = shutil.disk_usage(SHARED)
    except OSError as error:
        remedy = "Ray uses the temporary folder instead"
        return Finding("shared memory", "warning", f"{SHARED}: {error.strerror}", remedy)
    says = f"{disk.free / MIB:,.0f} of {disk.total / MIB:,.0f} MiB of {SHARED} free"
    if disk.free < OBJECT_STORE:
        remedy = f"a server uses {OBJECT_STORE // MIB} MiB; in a container: docker run --shm-size 1g"
        return Finding("shared memory", "warning", says, remedy)
    return Finding("shared memory", "ok", says)


def _check_writable(name: str, folder: Path, remedy: str, otherwise: Status) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        return Finding(name, otherwise, f"{folder} cannot be written: {error.strerror}", remedy)
    return Finding(name, "ok", f"{folder}, {shutil.disk_usage(folder).free / GIB:,.1f} GiB free")
