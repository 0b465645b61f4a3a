"""The input and output of every part of a command.

A part yields rows: mappings from a column's heading to a figure, printed as tables. A row with ``ok: False`` is a wrong
result; a row with ``failed`` is a measurement that raised an error.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch

Value = str | int | float | None
Row = Mapping[str, Value]  # bool is an int


@dataclass(frozen=True, slots=True)
class GpuSetting:
    """Where parts run: on a GPU in full size or on a CPU, under Triton's interpreter, in tiny sizes."""

    device: torch.device

    @property
    def is_tiny(self) -> bool:
        """Whether sizes are small and graphs are missing."""
        return self.device.type == "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations; the interpreter has no products in bf16."""
        return torch.float32 if self.is_tiny else torch.bfloat16

    @property
    def free_bytes(self) -> int:
        """Free memory of the device; on a CPU enough for any geometry."""
        return 1 << 40 if self.is_tiny else torch.cuda.mem_get_info(self.device)[0]

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if not self.is_tiny:
            torch.cuda.synchronize(self.device)

    def release_memory(self) -> None:
        """Return unused memory to the device."""
        with suppress(RuntimeError):  # after a fault of the device every call raises
            gc.collect()
            if not self.is_tiny:
                torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class MeasurementPart:
    """A step of a command, which runs in a process that a fault or a time limit may end."""

    name: str
    minutes: float  # estimate for an H100; the part is ended after twice as long
    question: str
    run: Callable[[GpuSetting], Iterable[Row]]


def attempt(setting: GpuSetting, name: str, measure: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """Yield the rows of ``measure``, or one row with its error, so that the next measurement runs."""
    setting.release_memory()
    try:
        yield from measure()
    except Exception as error:  # lack of memory above all: the next one may be smaller
        yield {"failed": name, "error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
