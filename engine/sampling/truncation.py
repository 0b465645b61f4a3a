"""Top-k, top-p and min-p in Hugging Face's order and semantics, for rows that may all differ.

* top-k keeps every token as probable as the k-th best, ties included;
* top-p, over the tokens that top-k keeps, drops the least probable ones whose probabilities together stay within
  ``1 - p``; among equal tokens the highest ids go first (Hugging Face leaves their order to the sort);
* min-p drops tokens less probable than ``min_p`` times the best.

The best token always stays. Sums are fp64: kept tokens then do not depend on batch size or device, except where
a sum hits its bound to 1e-15. Two implementations, tested against each other: NumPy on a CPU (row by row, sorting
only tokens that can matter) and batched torch ops elsewhere (no synchronisation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.sampling.params import SamplingParams
from engine.tree import FloatArray
from engine.upload import Upload

_NEG_INF = float("-inf")

Ids = npt.NDArray[np.intp]


def truncate(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Return a copy of ``scores`` ``[n, vocab]`` fp32 (after temperature), on a CPU, with dropped tokens at -inf."""
    rows = scores.numpy()
    kept = np.full_like(rows, _NEG_INF)
    for row, out, p in zip(rows, kept, params, strict=True):
        ids = _kept_ids(row, p)
        out[ids] = row[ids]
    return torch.from_numpy(kept)


def _kept_ids(scores: FloatArray, params: SamplingParams) -> Ids:
    """Return the tokens of one row ``[vocab]`` that stay, in any order."""
    vocab, best = len(scores), scores.argmax()
    ids: Ids | None = None  # None: all
    if 0 < params.top_k < vocab:
        top = torch.from_numpy(scores).topk(params.top_k, sorted=False).values  # faster than np.partition
        ids = np.flatnonzero(scores >= top.numpy().min())
    if params.top_p < 1.0:
        ids = _nucleus(scores, ids, params.top_p, float(scores[best]))
    if params.min_p > 0.0:
        floor = np.float32(float(scores[best]) + math.log(params.min_p))
        ids = np.flatnonzero(scores >= floor) if ids is None else ids[scores[ids] >= floor]
    if ids is None:
        return np.arange(vocab)
    return ids if len(ids) else np.array([best])


def _nucleus(scores: FloatArray, ids: Ids | None, top_p: float, best: float) -> Ids:
    """Return the nucleus of ``ids`` (``None``: of all), in falling order; it may be empty when ``top_p`` is 0."""
    weights = np.exp((scores if ids is None else scores[ids]).astype(np.float64) - best)
    total = weights.sum()
    if ids is None:  # tokens that stay within 1 - p even all together need no sorting
        ids = np.flatnonzero(weights * len(weights) > 0.999 * (1.0 - top_p) * total)
        weights = weights[ids]
    order = np.argsort(-scores[ids], kind="stable")
    weights = weights[order]
    before = np.cumsum(weights) - weights  # mass of everything more probable
    return ids[order[: int(np.count_nonzero(before < top_p * total))]]


class DeviceTruncation:
    """``truncate`` for any device, all rows at once and without a synchronisation.

    Args:
        params: of every row, ``[n]``.
        vocab: width of the rows.
        upload: carries them to the device.
    """

    def __init__(self, params: Sequence[SamplingParams], vocab: int, upload: Upload) -> None:
        log_min_p = [[math.log(p.min_p) if p.min_p > 0.0 else _NEG_INF] for p in params]
        self._top_k = upload.add(np.array([[p.top_k if 0 < p.top_k < vocab else vocab] for p in params]))
        self._top_p = upload.add(np.array([[p.top_p] for p in params]), np.float64)
        self._log_min_p = upload.add(np.array(log_min_p), np.float64)

    def apply(self, scores: Tensor) -> Tensor:
        """Return ``truncate`` of ``scores``; one stable sort serves the three rules."""
        ordered, ids = torch.sort(scores, dim=-1, descending=True, stable=True)  # [n, vocab]
        best = ordered[:, :1].double()
        in_top_k = ordered >= ordered.gather(-1, self._top_k.tensor - 1)
        weights = torch.exp(ordered.double() - best) * in_top_k
        before = weights.cumsum(-1) - weights
        top_p = self._top_p.tensor
        keep = (before < top_p * weights.sum(-1, keepdim=True)) | (top_p >= 1.0)
        keep &= in_top_k & (ordered >= (best + self._log_min_p.tensor).float())
        keep[:, 0].fill_(True)
        return torch.full_like(scores, _NEG_INF).scatter_(-1, ids, ordered.masked_fill(~keep, _NEG_INF))
