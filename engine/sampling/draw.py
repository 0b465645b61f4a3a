"""Drawing tokens: argmax of scores, or of scores plus Gumbel noise.

The one place where scores become tokens, for targets and for drafters that want to share the target's noise. Ties go
to the lowest id everywhere (torch and NumPy agree on that), so a row decides alike alone, in a batch, on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.sampling.keys import NoiseKey
from engine.sampling.noise import GUMBEL_RANGE, gumbel, gumbel_row
from engine.tree import FloatArray


def draw_tokens(scores: torch.Tensor, keys: Sequence[NoiseKey | None]) -> list[int]:
    """One token per row: an exact sample of ``softmax(scores)`` where a key is given, the argmax elsewhere.

    Args:
        scores: ``[n, vocab]`` fp32, log-probabilities up to a constant per row; not changed.
        keys: noise key of every row, ``None`` for greedy rows, ``[n]``.
    """
    if scores.device.type == "cpu":
        return [_draw_row(row, key) for row, key in zip(scores.numpy(), keys, strict=True)]
    return _draw_torch(scores, keys)


def _draw_torch(scores: torch.Tensor, keys: Sequence[NoiseKey | None]) -> list[int]:
    """All rows at once, one transfer."""
    noisy = [i for i, key in enumerate(keys) if key is not None]
    if noisy:
        noise = gumbel([key for key in keys if key is not None], scores.shape[-1], scores.device)
        scores = scores.index_add(0, torch.tensor(noisy, device=scores.device), noise)
    tokens: list[int] = scores.argmax(dim=-1).tolist()
    return tokens


def _draw_row(scores: FloatArray, key: NoiseKey | None) -> int:
    """One row ``[vocab]``; noise is computed only for ids that it could lift above the best one."""
    best = int(scores.argmax())
    if key is None:
        return best
    ids = np.flatnonzero(scores >= scores[best] - np.float32(GUMBEL_RANGE + 0.5))  # 0.5: room for fp32 rounding
    if 2 * len(ids) > len(scores):
        return int((scores + gumbel_row(key, len(scores))).argmax())
    return int(ids[(scores[ids] + gumbel_row(key, len(scores), ids)).argmax()])
