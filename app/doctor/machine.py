"""The machine: GPUs, memory, folders."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import spectra_serve
from app.doctor.findings import OK, PROBLEM, WARNING, Finding, Status
from app.inputs.devices import default_threads, has_cuda_device
from engine.kept_files import cache_folder
from engine.model.partition import GIB

MIB = 1 << 20
DRIVER = Path("/proc/driver/nvidia/version")
SHARED = Path("/dev/shm")
OBJECT_STORE = 128 * MIB  # that a server's own Ray asks for


def gpus() -> Iterator[Finding]:
    """GPUs, as torch sees them."""
    import torch

    built = torch.version.cuda
    if not has_cuda_device():
        yield Finding("gpu", OK, f"no GPU; --device cpu, with --threads {default_threads()} where it is not given")
    elif built is None:
        remedy = "install torch from its index of CUDA wheels"
        yield Finding("gpu", PROBLEM, f"there is one, but torch {torch.__version__} is built without CUDA", remedy)
    elif not torch.cuda.is_available():
        yield Finding("gpu", PROBLEM, f"torch (CUDA {built}) cannot use it", f"compare with the driver: {_driver()}")
    else:
        for i in range(torch.cuda.device_count()):
            free, whole = torch.cuda.mem_get_info(i)
            name = torch.cuda.get_device_name(i)
            says = f"{name}, {free / GIB:.1f} of {whole / GIB:.1f} GiB free; CUDA {built}, {_driver()}"
            yield Finding(f"gpu {i}", OK, says)


def gpu_memory_gib() -> float | None:
    """Memory of the smallest GPU; None: torch sees none."""
    import torch

    if not torch.cuda.is_available():
        return None
    return min(torch.cuda.mem_get_info(i)[1] for i in range(torch.cuda.device_count())) / GIB


def _driver() -> str:
    try:
        first = DRIVER.read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return "driver unknown"
    return "driver " + next((word for word in first.split() if word[:1].isdigit() and "." in word), "unknown")


def folders() -> Iterator[Finding]:
    """Shared memory, the cache and the temporary folder."""
    yield _shared_memory()
    yield _writable("cache", cache_folder(), "step times and indexes are kept there; set XDG_CACHE_HOME", WARNING)
    found = _writable("temporary files", Path(tempfile.gettempdir()), "set TMPDIR", PROBLEM)
    if unused := spectra_serve.UNUSED_TMPDIR:
        why = f"it is longer than {spectra_serve.LONGEST_TEMPORARY} bytes, too long for sockets"
        found = replace(found, says=f"{found.says}; TMPDIR {unused} is not used: {why}")
    yield found


def _shared_memory() -> Finding:
    try:
        found = shutil.disk_usage(SHARED)
    except OSError as error:
        return Finding("shared memory", WARNING, f"{SHARED}: {error.strerror}", "Ray takes the temporary folder")
    says = f"{found.free / MIB:,.0f} of {found.total / MIB:,.0f} MiB of {SHARED} free"
    if found.free < OBJECT_STORE:
        return Finding("shared memory", WARNING, says, f"{OBJECT_STORE // MIB} MiB are used; docker run --shm-size 1g")
    return Finding("shared memory", OK, says)


def _writable(name: str, folder: Path, remedy: str, otherwise: Status) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        return Finding(name, otherwise, f"{folder} cannot be written: {error.strerror}", remedy)
    return Finding(name, OK, f"{folder}, {shutil.disk_usage(folder).free / GIB:,.1f} GiB free")
