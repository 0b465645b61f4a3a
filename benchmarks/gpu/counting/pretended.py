"""A CUDA device that is none: tensors say that they are on one, and a CPU computes them.

So the code of that device runs, and ``counter`` counts what it would ask for, where there is no GPU. Memory of
the "device" cannot be read without a copy, as on a real one. Triton's kernels are launched, but compute nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("cuda", 0)
_FLASH = torch.ops.aten._flash_attention_forward.default
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty"}  # 0: what kernels do not write must be no NaN
_tensor = torch.tensor


class PretendedTensor(Tensor):
    """A tensor of the device; ``host`` is what computes it."""

    host: Tensor
    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, host: Tensor) -> PretendedTensor:
        """Of the same shape and layout; torch's own code takes it for one of the meta device."""
        made = Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device="meta",  # type: ignore[arg-type]
        )
        made.host = host
        return made

    def tolist(self) -> Any:
        """Values, by a copy to the host."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Outside ``pretended_cuda`` too."""
        return _run(func, args, kwargs or {})


class PretendedStream:
    """A stream that is always done: a CPU's calls return when their work is."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Nothing is under way."""


class PretendedEvent:
    """A moment of the only stream."""

    def __init__(self, **_: Any) -> None:
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        """Now."""
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """It is over."""

    def elapsed_time(self, end: PretendedEvent) -> float:
        """Milliseconds to ``end``."""
        return (end._at - self._at) * 1e3


class PretendedGraph:
    """A graph that is recorded by running it."""

    def pool(self) -> None:
        """It has no memory of its own."""

    def replay(self) -> None:
        """What it would compute is computed nowhere: kernels do not run here."""


@contextmanager
def _recording(graph: PretendedGraph, **_: Any) -> Iterator[None]:
    yield


def _launch_nothing(kernel: Any, grid: Any) -> Callable[..., None]:
    """Triton's kernels read memory that is not there."""
    return lambda *args, **options: None


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Catches what has no tensor of the device among its arguments: factories."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def pretended_cuda() -> Iterator[torch.device]:
    """The device, while the block runs, in inference mode: views of tensors made in another mode cannot be followed."""
    with torch.device("cpu"):  # torch keeps, with the first such block, the functions that it is for: not ours for them
        torch.empty(0)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.cuda, "_lazy_init"))
        stack.enter_context(mock.patch.object(torch.cuda, "current_stream", PretendedStream))
        stack.enter_context(mock.patch.object(torch.cuda, "Event", PretendedEvent))
        stack.enter_context(mock.patch.object(torch.cuda, "Stream", PretendedStream))
        stack.enter_context(mock.patch.object(torch.cuda, "device_of", return_value=nullcontext()))
        stack.enter_context(mock.patch.object(torch.cuda, "CUDAGraph", PretendedGraph))
        stack.enter_context(mock.patch.object(torch.cuda, "graph", _recording))
        if find_spec("triton") is not None:
            from triton.runtime.jit import KernelInterface

            stack.enter_context(mock.patch.object(KernelInterface, "__getitem__", _launch_nothing))
        stack.enter_context(mock.patch.object(torch, "tensor", _make))
        stack.enter_context(torch.inference_mode())
        stack.enter_context(_Mode())  # type: ignore[no-untyped-call]
        yield DEVICE


def move_to_pretended(model: nn.Module) -> None:
    """Put parameters and buffers of a CPU's model on the device."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(PretendedTensor(parameter.data), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = PretendedTensor(buffer)


def _make(data: Any, *, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> Tensor:
    """``torch.tensor``, which does not get as far as dispatch without CUDA: on the host first, then a copy."""
    made = _tensor(data, dtype=dtype, **options)
    return made if device is None else made.to(device)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """One operator, by the CPU; its result is on the device that a GPU's would be on."""
    name = func.overloadpacket.__name__
    is_ours = any(isinstance(x, PretendedTensor) for x in tree_leaves((args, kwargs)))
    values = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    changes: dict[str, Any] = {"pin_memory": False} if values.get("pin_memory") else {}
    if values.get("device") is not None:
        is_ours = torch.device(values["device"]).type in ("cuda", "meta")
        changes["device"] = torch.device("cpu")
    elif name == "to" and isinstance(values.get("other"), Tensor):
        is_ours = isinstance(values["other"], PretendedTensor)
    args = [changes.pop(argument.name, value) for argument, value in zip(func._schema.arguments, args, strict=False)]
    args, kwargs = tree_map(lambda x: x.host if isinstance(x, PretendedTensor) else x, (args, {**kwargs, **changes}))
    result = _flash(*args, **kwargs) if func is _FLASH else func(*args, **kwargs)
    if name in _EMPTY and is_ours and isinstance(result, Tensor):
        result.zero_()
    if name in ("to", "_to_copy") and is_ours != isinstance(values["self"], PretendedTensor) and result is args[0]:
        result = result.clone()  # two memories
    return tree_map(lambda x: PretendedTensor(x) if isinstance(x, Tensor) else x, result) if is_ours else result


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_ends: Tensor | None,
    key_starts: Tensor | None,
    _max_q: int,
    _max_k: int,
    _dropout: float,
    causal: bool,
    _debug: bool,
    *,
    scale: float,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What torch's flash kernel computes: causal blocks end where the keys do; log-sum-exp is inf without keys."""
    nothing = torch.empty(0)
    if query_ends is None:
        out, lse = _attend(q[0], k[0], v[0], scale, causal, window_size_left)
        return out.unsqueeze(0), lse.unsqueeze(0), nothing, nothing, nothing
    assert key_starts is not None
    assert seqused_k is not None
    outs, lses = [], []
    for i, n_keys in enumerate(seqused_k.tolist()):
        own, first = q[int(query_ends[i]) : int(query_ends[i + 1])], int(key_starts[i])
        one = _attend(own, k[first : first + n_keys], v[first : first + n_keys], scale, causal, window_size_left)
        outs.append(one[0])
        lses.append(one[1])
    return torch.cat(outs), torch.cat(lses, dim=1), nothing, nothing, nothing


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, back: int | None) -> tuple[Tensor, Tensor]:
    """One sequence: ``q`` ``[n, heads, d]``, ``k`` and ``v`` ``[n_keys, kv_heads, d]``; log-sum-exp ``[heads, n]``."""
    n_keys, groups = len(k), q.shape[1] // k.shape[1]
    keys, values = (x.float().repeat_interleave(groups, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * scale
    behind = torch.arange(n_keys - len(q), n_keys)[:, None] - torch.arange(n_keys)
    if causal:
        scores = scores.masked_fill(behind < 0, float("-inf"))
    if back is not None:
        scores = scores.masked_fill(behind > back, float("-inf"))
    if not n_keys:
        return torch.zeros_like(q), torch.full((q.shape[1], len(q)), float("inf"))
    out = torch.einsum("hqk,khd->qhd", torch.softmax(scores, dim=-1), values)
    return out.to(q.dtype), torch.logsumexp(scores, dim=-1)
