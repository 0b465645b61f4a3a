"""Counter-based randomness: every number is a pure function of its key, on every device.

Two streams hang off one key ``(seed, choice, position)``; ``position`` is the absolute index in prompt + output of
the token being drawn, so that a re-prefill, another speculator or another batch changes nothing:

* ``gumbel``: one value per vocabulary id, for coupled verification;
* ``uniforms``: a few numbers for rejection sampling.

The 64-bit key is mixed by splitmix64 (Steele, Lea, Flood 2014), the vocabulary id by triple32 (Wellons 2018), a
32-bit permutation whose input is shifted by one half of the key and whose middle is flipped by the other. Integers
are equal everywhere; NumPy computes them on a CPU (a few times faster there), int64 torch ops elsewhere. From
integer to Gumbel everything is fp64 and only the result is rounded to fp32: two devices whose fp64 logarithms
differ in the last bit then agree but for about one value in 2**28, by one fp32 step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.device import is_host
from engine.sampling.keys import GOLDEN64, GUMBEL_DOMAIN, U64, UNIFORM_DOMAIN, NoiseKey, mix64, position_key
from engine.tree import FloatArray
from engine.upload import Upload

GUMBEL_RANGE = 26.02  # largest minus smallest value that can occur

_U32 = (1 << 32) - 1
_GOLDEN32 = 0x9E3779B9
_TRIPLE32 = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))  # (xor-shift, multiplier), then a last shift
_LAST_SHIFT = 14


@lru_cache(maxsize=8)
def _counters(vocab: int) -> npt.NDArray[np.uint32]:
    """``[vocab]`` uint32: the vocabulary ids, spread over the 32-bit range. Read only."""
    counters = np.arange(vocab, dtype=np.uint32) * np.uint32(_GOLDEN32)
    counters.flags.writeable = False
    return counters


def _bits_numpy(key: int, counters: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The 32 random bits of every counter, same shape."""
    bits = counters + np.uint32(key & _U32)
    scratch = np.empty_like(bits)
    for stage, (shift, factor) in enumerate(_TRIPLE32):
        np.right_shift(bits, np.uint32(shift), out=scratch)
        np.bitwise_xor(bits, scratch, out=bits)
        np.multiply(bits, np.uint32(factor), out=bits)
        if stage == 0:
            np.bitwise_xor(bits, np.uint32(key >> 32), out=bits)
    np.right_shift(bits, np.uint32(_LAST_SHIFT), out=scratch)
    np.bitwise_xor(bits, scratch, out=bits)
    return bits


def _bits_torch(keys: torch.Tensor, vocab: int) -> torch.Tensor:
    """``[n, vocab]`` int64 holding the same 32 bits; masks stand in for the unsigned overflow."""
    low, high = keys[0, :, None], keys[1, :, None]
    x = (torch.arange(vocab, device=keys.device) * _GOLDEN32 + low) & _U32
    for stage, (shift, factor) in enumerate(_TRIPLE32):
        x = ((x ^ (x >> shift)) * factor).bitwise_and_(_U32)
        if stage == 0:
            x = x ^ high
    return x ^ (x >> _LAST_SHIFT)


def gumbel_keys(keys: Sequence[NoiseKey]) -> npt.NDArray[np.int64]:
    """What ``gumbel_on_device`` is to be told of the keys: the halves of their bits, ``[2, n]``."""
    mixed = [position_key(key, GUMBEL_DOMAIN) for key in keys]
    return np.array([[key & _U32 for key in mixed], [key >> 32 for key in mixed]], np.int64)


def gumbel_on_device(keys: torch.Tensor, vocab: int) -> torch.Tensor:
    """``gumbel`` for ``gumbel_keys`` that are on the device where the noise is needed, ``[n, vocab]`` fp32."""
    u = _bits_torch(keys, vocab).double().add_(0.5).mul_(2.0**-32)
    return u.log_().neg_().log_().neg_().float()


def gumbel_row(key: NoiseKey, vocab: int, ids: npt.NDArray[np.intp] | None = None) -> FloatArray:
    """One row of ``gumbel`` as NumPy array, ``[vocab]`` fp32, or its values at ``ids`` only, at their cost only."""
    counters = _counters(vocab)
    return _gumbel_numpy(position_key(key, GUMBEL_DOMAIN), counters if ids is None else counters[ids])


def _gumbel_numpy(key: int, counters: npt.NDArray[np.uint32]) -> FloatArray:
    u = _bits_numpy(key, counters) + 0.5  # fp64
    u *= 2.0**-32
    np.log(u, out=u)
    np.negative(u, out=u)
    np.log(u, out=u)
    np.negative(u, out=u)
    return u.astype(np.float32)


def gumbel(keys: Sequence[NoiseKey], vocab: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Standard Gumbel noise, one row per key: ``-log(-log u)`` with ``u = (bits + 1/2) / 2**32``, never 0 or 1.

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
    """``n`` numbers in [0, 1) of 53 bits each, independent of ``gumbel`` and of every other salt."""
    key = mix64(position_key((seed, choice, position), UNIFORM_DOMAIN) ^ salt)
    return [(mix64(key + i * GOLDEN64 & U64) >> 11) * 2.0**-53 for i in range(n)]


class KeyedRandom:
    """The decisions of rejection sampling at one position (implements ``engine.sampling.randomness.Randomness``)."""

    def __init__(self, key: NoiseKey, salt: int = 0) -> None:
        self._key = key
        self._salt = salt
        self._used = 0

    def _next(self) -> float:
        self._used += 1
        return uniforms(*self._key, salt=(self._salt << 32) + self._used, n=1)[0]

    def accept(self, probability: float) -> bool:
        """True with the given probability; always at 1, never at 0."""
        return self._next() < probability

    def draw(self, weights: npt.NDArray[Any]) -> int:
        """An index with probability proportional to ``weights`` ``[vocab]``; never one of weight 0."""
        cumulative = np.cumsum(weights, dtype=np.float64)
        index = int(np.searchsorted(cumulative, self._next() * cumulative[-1], side="right"))
        return index if index < len(weights) else int(np.flatnonzero(weights)[-1])  # rounding at the upper end
