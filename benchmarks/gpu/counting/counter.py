"""Counts what a step asks of its device: operations, copies, and the times at which the host waits for it.

A dispatch mode sees every operator, on a GPU as on a pretended one (``pretended``); waits for streams and events,
launches of Triton's kernels and replays of graphs are counted where they are called. How many kernels one operator
launches is not seen; a profiler can tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operators whose result has a shape that depends on values: the host reads it before it can go on.
_SHAPED_BY_VALUES = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal", "is_nonzero"}
_NO_KERNEL = {"_unsafe_view", "_reshape_alias", "detach", "empty", "empty_like", "empty_strided", "new_empty"}


@dataclass(slots=True)
class Counts:
    """What was asked of the device."""

    ops: int = 0  # that compute or copy on the device: operators (no views and allocations), launches, replays
    uploads: int = 0  # copies from the host, each a host tensor
    downloads: int = 0  # copies to the host, single values included
    waits: int = 0  # of the host: blocking copies, values, shapes that depend on values, streams and events
    by_name: Counter[str] = field(default_factory=Counter)  # of ``ops``

    def add(self, name: str) -> None:
        """One more of ``ops``."""
        self.ops += 1
        self.by_name[name] += 1


@contextmanager
def counted() -> Iterator[Counts]:
    """Counts of what the block asks for; inside ``pretended_cuda``, if that is where it runs."""
    counts = Counts()
    with ExitStack() as stack:
        for owner in (torch.cuda.Event, torch.cuda.Stream):
            waits = _counting(owner.synchronize, counts)
            stack.enter_context(mock.patch.object(owner, "synchronize", waits))
        stack.enter_context(mock.patch.object(torch.cuda.CUDAGraph, "replay", _counting_replays(counts)))
        if find_spec("triton") is not None:
            from triton.runtime.jit import KernelInterface

            launched = _counting_launches(KernelInterface.__getitem__, counts)
            stack.enter_context(mock.patch.object(KernelInterface, "__getitem__", launched))
        stack.enter_context(_Mode(counts))
        yield counts


def _counting(synchronize: Callable[[Any], None], counts: Counts) -> Callable[[Any], None]:
    def synchronize_counted(self: Any) -> None:
        counts.waits += 1
        synchronize(self)

    return synchronize_counted


def _counting_replays(counts: Counts) -> Callable[[Any], None]:
    replay = torch.cuda.CUDAGraph.replay

    def replay_counted(self: Any) -> None:
        counts.add("graph")
        replay(self)

    return replay_counted


def _counting_launches(launcher_of: Callable[[Any, Any], Any], counts: Counts) -> Callable[[Any, Any], Any]:
    def launcher_counted(self: Any, grid: Any) -> Any:
        counts.add(self.__name__)
        return launcher_of(self, grid)

    return launcher_counted


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, counts: Counts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, counted; one that is composed of others is counted as those."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name != "to":
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        result = func(*args, **kwargs)
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if any(map(_is_on_device, (*inputs, *outputs))):
            self._count(name, func, args, kwargs, inputs, outputs)
        return result

    def _count(self, name: str, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        counts = self.counts
        if name == "lift_fresh":  # all that is to be seen of torch.tensor(.., device=..)
            self._copy(to_host=False, blocks=True)
        elif name in ("to", "_to_copy", "copy_"):
            source, target = (args[1], args[0]) if name == "copy_" else (args[0], outputs[0])
            if _is_on_device(source) != _is_on_device(target):
                self._copy(_is_on_device(source), not _argument(func, args, kwargs, "non_blocking"))
            elif not _is_same(source, target):
                self.counts.add(name)
        elif name == "_local_scalar_dense":
            self._copy(to_host=True, blocks=True)
        elif not func.is_view and name not in _NO_KERNEL:
            self.counts.add(name)
            if name.startswith("index"):
                for x in inputs[1:]:
                    if not _is_on_device(x) and x.dim():
                        self._copy(to_host=False, blocks=True)
                    counts.waits += x.dtype == torch.bool
            counts.waits += name in _SHAPED_BY_VALUES

    def _copy(self, to_host: bool, blocks: bool) -> None:
        self.counts.downloads += to_host
        self.counts.uploads += not to_host
        self.counts.waits += blocks


def _is_on_device(x: Tensor) -> bool:
    return x.device.type == "cuda"


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Whether a conversion had nothing to do."""
    return a is b or getattr(a, "host", a) is getattr(b, "host", b)


def _argument(func: Any, args: Any, kwargs: Any, name: str) -> Any:
    """An argument by its name in the operator's schema, however it was passed; None when it was not."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == name and place < len(args):
            return args[place]
    return kwargs.get(name)
