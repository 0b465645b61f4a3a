"""Draws tokens: argmax of scores, or of scores plus Gumbel noise.

Only here do scores become tokens, for targets and for drafters that share the target's noise. Ties go
to the lowest id everywhere (torch and NumPy agree on that), so a row decides alike alone, in a batch, on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from engine.sampling.keys import NoiseKey
from engine.sampling.noise import GUMBEL_RANGE, gumbel_keys, gumbel_on_device, gumbel_row
from engine.tree import FloatArray
from engine.upload import Upload


def draw_tokens(scores: Tensor, keys: Sequence[NoiseKey | None]) -> list[int]:
    """Return one token per row: an exact sample of ``softmax(scores)`` where a key is given, the argmax elsewhere.

    Args:
        scores: ``[n, vocab]`` fp32 on a CPU, log-probabilities up to a constant per row; not changed.
        keys: noise key of every row, ``None`` for greedy rows, ``[n]``.
    """
    return [_draw_row(row, key) for row, key in zip(scores.numpy(), keys, strict=True)]


class DeviceDraw:
    """``draw_tokens`` for any device, all rows at once: planned on the host, and nothing waits for the tokens.

    Noise is computed once per key: the nodes of one depth share theirs.

    Args:
        keys: noise key of every row, ``None`` for greedy rows, ``[n]``.
        upload: carries arrays to the device.
    """

    def __init__(self, keys: Sequence[NoiseKey | None], upload: Upload) -> None:
        places: dict[NoiseKey, int] = {}
        noisy = [i for i, key in enumerate(keys) if key is not None]
        of_rows = [places.setdefault(key, len(places)) for key in keys if key is not None]
        self._is_noisy = bool(noisy)
        if noisy:
            self._rows, self._of_rows = upload.add(noisy), upload.add(of_rows)
            self._keys = upload.add(gumbel_keys(list(places)))

    def apply(self, scores: Tensor) -> Tensor:
        """Return the tokens, int32 ``[n]``, of ``scores`` ``[n, vocab]`` fp32."""
        if self._is_noisy:
            noise = gumbel_on_device(self._keys.tensor, scores.shape[-1])
            scores = scores.index_add(0, self._rows.tensor, noise.index_select(0, self._of_rows.tensor))
        return scores.argmax(dim=-1).int()


def _draw_row(scores: FloatArray, key: NoiseKey | None) -> int:
    """Return the token of a row ``[vocab]``; noise is computed only for ids that it could lift above the best one."""
    best = int(scores.argmax())
    if key is None:
        return best
    ids = np.flatnonzero(scores >= scores[best] - np.float32(GUMBEL_RANGE + 0.5))  # 0.5: room for fp32 rounding
    if 2 * len(ids) > len(scores):
        return int((scores + gumbel_row(key, len(scores))).argmax())
    return int(ids[(scores[ids] + gumbel_row(key, len(scores), ids)).argmax()])
