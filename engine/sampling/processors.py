"""From raw logits to the scores a token is drawn from: bias, stop mask, penalties, temperature, truncation.

Order and semantics are Hugging Face's: logit bias, repetition penalty (prompt and output), then OpenAI's presence and
frequency penalties (output), ``min_tokens``, temperature, top-k, top-p, min-p. Every node of a token tree is
processed on its own prefix: the history of its sequence, which is kept once, and the tokens of its own path.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from engine.device import is_host
from engine.sampling.history import History
from engine.sampling.params import SamplingParams
from engine.sampling.shift import ShiftedRow, is_shifted, plan_shifts
from engine.sampling.truncation import DeviceTruncation, truncate
from engine.upload import Upload


class Processing:
    """The processing of some rows of logits: planned on the host, applied once the upload is sent.

    Args:
        params: of every row, ``[n]``.
        histories: of every row's sequence, ``[n]``; ``None`` is fine for rows without penalties and ``min_tokens``.
        vocab: width of the rows.
        upload: carries arrays to the rows' device.
        paths: tokens between the history and the row, ``[n]``; None: no row has any.

    Raises:
        ValueError: a row needs a history and has none.
    """

    def __init__(
        self,
        params: Sequence[SamplingParams],
        histories: Sequence[History | None],
        vocab: int,
        upload: Upload,
        paths: Sequence[Sequence[int]] | None = None,
    ) -> None:
        inputs = zip(params, histories, paths or [()] * len(params), strict=True)
        rows = [ShiftedRow(i, *row) for i, row in enumerate(inputs) if is_shifted(*row)]
        self._shifts = plan_shifts(rows, vocab, upload) if rows else []
        self._temperatures = None
        if any(p.temperature not in (0.0, 1.0) for p in params):
            # an array, because a GPU multiplies by the reciprocal when the divisor is a Python number
            self._temperatures = upload.add(np.array([[p.temperature or 1.0] for p in params], np.float32), np.float32)
        index = [i for i, p in enumerate(params) if not p.is_greedy and p.truncates]
        self._truncated = [params[i] for i in index]
        self._index = upload.add(index) if 0 < len(index) < len(params) else None  # None: all rows or none
        self._on_device = None
        if index and not is_host(upload.device):
            self._on_device = DeviceTruncation(self._truncated, vocab, upload)

    def apply(self, logits: Tensor, owned: bool = False) -> Tensor:
        """Return scores to draw from: log-probabilities up to a constant per row, -inf for ids that cannot be drawn.

        Args:
            logits: ``[n, vocab]`` fp32, changed only if ``owned``.
            owned: the caller no longer needs ``logits``.

        Returns:
            ``[n, vocab]`` fp32; ``logits`` itself when no row needs anything.
        """
        scores = logits.clone() if self._shifts and not owned else logits
        for change, arrays in self._shifts:
            change(scores, *(array.tensor for array in arrays))
        if self._temperatures is not None:
            scores = scores / self._temperatures.tensor
        if not self._truncated:
            return scores
        if self._index is None:
            return self._truncate(scores)
        index = self._index.tensor
        return scores.index_copy(0, index, self._truncate(scores.index_select(0, index)))

    def _truncate(self, scores: Tensor) -> Tensor:
        return truncate(scores, self._truncated) if self._on_device is None else self._on_device.apply(scores)


def process(logits: Tensor, params: Sequence[SamplingParams], histories: Sequence[History | None]) -> Tensor:
    """Plan and apply the ``Processing`` of rows directly after their histories; return the scores.

    Greedy rows get bias, mask and penalties only: their argmax decides. Rows that need nothing cost nothing.
    """
    upload = Upload(logits.device)
    plan = Processing(params, histories, logits.shape[-1], upload)
    upload.send()
    return plan.apply(logits)
