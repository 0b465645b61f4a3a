"""Counter-based randomness: every number is a pure function of its key, on every device.

Two streams share one key ``(seed, choice, position)``; ``position`` is the absolute index in prompt and output of the
drawn token, so a second prefill, another speculator or another batch changes nothing:

* ``gumbel``: one value for each vocabulary id, for coupled verification;
* ``uniforms``: a few numbers for rejection sampling.

Integers come from ``engine.sampling.keys`` and are equal everywhere: compiled code computes them on a CPU, int64 torch
ops elsewhere. From integer to Gumbel everything is fp64 and only the result is rounded to fp32. Two devices whose fp64
logarithms differ in the last bit then agree but for about one value in 2**28, by one fp32 step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.compiled import compiled_in_place
from engine.device import is_host
from engine.sampling.keys import (
    GOLDEN64,
    GUMBEL_DOMAIN,
    U64,
    UNIFORM_DOMAIN,
    NoiseKey,
    mix64,
    noise_bits,
    position_key,
)
from engine.tree import FloatArray
from engine.upload import Upload

GUMBEL_RANGE = 26.02  # largest minus smallest value that can occur

_U32 = (1 << 32) - 1


@compiled_in_place
def _fill_uniforms(key: Any, ids: npt.NDArray[np.int64], out: npt.NDArray[np.float64]) -> None:
    """Write ``(bits + 1/2) / 2**32`` of each id to ``out``; no ids: of 0, 1, 2, ..."""
    for i in range(len(out)):
        out[i] = (noise_bits(key, np.uint64(ids[i] if len(ids) else i)) + 0.5) * 2.0**-32


_ALL = np.empty(0, np.int64)


def gumbel_row(key: NoiseKey, vocab: int, ids: npt.NDArray[np.intp] | None = None) -> FloatArray:
    """Return one row of ``gumbel`` as a NumPy array ``[vocab]`` fp32, or only its values at ``ids`` ``[n]``."""
    u = np.empty(vocab if ids is None else len(ids))
    _fill_uniforms(np.uint64(position_key(key, GUMBEL_DOMAIN)), _ALL if ids is None else ids, u)
    np.log(u, out=u)  # four times faster than a compiled logarithm
    np.negative(u, out=u)
    np.log(u, out=u)
    np.negative(u, out=u)
    return u.astype(np.float32)


def _device_bits(keys: torch.Tensor, vocab: int) -> torch.Tensor:
    """Return ``noise_bits`` in int64, ``[n, vocab]``; masks stand in for unsigned overflow."""
    low, high = keys[0, :, None], keys[1, :, None]
    x = (torch.arange(vocab, device=keys.device) * 0x9E3779B9 + low) & _U32
    x = ((x ^ (x >> 17)) * 0xED5AD4BB).bitwise_and_(_U32) ^ high
    x = ((x ^ (x >> 11)) * 0xAC4C1B51).bitwise_and_(_U32)
    x = ((x ^ (x >> 15)) * 0x31848BAB).bitwise_and_(_U32)
    return x ^ (x >> 14)


def gumbel_keys(keys: Sequence[NoiseKey]) -> npt.NDArray[np.int64]:
    """Return the lower and upper halves of the mixed keys, ``[2, n]``, as ``gumbel_on_device`` reads them."""
    mixed = [position_key(key, GUMBEL_DOMAIN) for key in keys]
    return np.array([[key & _U32 for key in mixed], [key >> 32 for key in mixed]], np.int64)


def gumbel_on_device(keys: torch.Tensor, vocab: int) -> torch.Tensor:
    """Return ``gumbel`` of ``gumbel_keys`` on their device, ``[n, vocab]`` fp32."""
    u = _device_bits(keys, vocab).double().add_(0.5).mul_(2.0**-32)
    return u.log_().neg_().log_().neg_().float()


def gumbel(keys: Sequence[NoiseKey], vocab: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return standard Gumbel noise, one row per key: ``-log(-log u)`` with ``u = (bits + 1/2) / 2**32``.

    Args:
        keys: ``(seed, choice, position)`` of every row, ``[n]``.
        vocab: number of vocabulary ids; a longer vocabulary leaves the noise of the first ids unchanged.
        device: where the noise is needed.

    Returns:
        ``[n, vocab]`` fp32 on ``device``, within (-3.14, 22.88).
    """
    device = torch.device(device)
    if is_host(device):
        return torch.from_numpy(np.stack([gumbel_row(key, vocab) for key in keys]))
    upload = Upload(device)
    mixed = upload.add(gumbel_keys(keys))
    upload.send()
    return gumbel_on_device(mixed.tensor, vocab)


def uniforms(seed: int, choice: int, position: int, salt: int, n: int) -> list[float]:
    """Return ``n`` numbers in [0, 1) of 53 bits each, independent of ``gumbel`` and of every other salt."""
    key = mix64(position_key((seed, choice, position), UNIFORM_DOMAIN) ^ salt)
    return [(mix64(key + i * GOLDEN64 & U64) >> 11) * 2.0**-53 for i in range(n)]


class Randomness(Protocol):
    """The decisions of rejection sampling: keyed numbers in the engine, an enumeration of all outcomes in tests."""

    def accept(self, probability: float) -> bool:
        """Return True with this probability: always at 1, never at 0."""

    def draw(self, weights: npt.NDArray[Any]) -> int:
        """Return an index in proportion to ``weights`` ``[vocab]`` (sum above 0); never one of weight 0."""


class KeyedRandom:
    """The decisions of rejection sampling at one position (implements ``Randomness``)."""

    def __init__(self, key: NoiseKey, salt: int = 0) -> None:
        self._key = key
        self._salt = salt
        self._used = 0

    def _next(self) -> float:
        self._used += 1
        return uniforms(*self._key, salt=(self._salt << 32) + self._used, n=1)[0]

    def accept(self, probability: float) -> bool:
        return self._next() < probability

    def draw(self, weights: npt.NDArray[Any]) -> int:
        cumulative = np.cumsum(weights, dtype=np.float64)
        index = int(np.searchsorted(cumulative, self._next() * cumulative[-1], side="right"))
        return index if index < len(weights) else int(np.flatnonzero(weights)[-1])  # rounding at the upper end
