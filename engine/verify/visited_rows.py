"""Draws only at the rows that walks visit, level by level of the trees.

That is what counts on a CPU, where a vocabulary's noise takes longer than everything else. On a GPU each level costs a
synchronisation, so only the rejection rule draws so: its decisions need whole distributions on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from engine.device import Array
from engine.events import NOT_FINITE
from engine.sampling.draw import draw_tokens
from engine.sampling.logprobs import fetch_logprobs
from engine.sampling.noise import KeyedRandom
from engine.sampling.processors import process
from engine.upload import Upload
from engine.verify.masks import drawn_params, mask_current_nodes
from engine.verify.rules import Decision, decide_rejection
from engine.verify.walk import Draws, Pair, current_rows, match_tokens


class VisitedDraws(Draws):
    """Processes rows, then draws with noise or by the rejection rule."""

    def begin(self, logits: Tensor) -> list[Tensor]:
        self.logits = logits
        return []

    def decide(self, pairs: Sequence[Pair]) -> list[Decision]:
        scores = self._process(pairs)
        rejecting = [i for i, (item, _) in enumerate(pairs) if item.params.rejects]
        decisions: list[Decision] = [(None, -1)] * len(pairs)
        if len(rejecting) < len(pairs):
            keys = [item.noise_key(len(walk.tokens)) for item, walk in pairs]
            decisions = match_tokens(pairs, draw_tokens(scores, keys))
        if rejecting:
            if len(rejecting) < len(pairs):
                scores = _select(scores, rejecting)
            p = torch.softmax(scores.double(), dim=-1).cpu().numpy()
            for i, row in zip(rejecting, p, strict=True):
                item, walk = pairs[i]
                decisions[i] = decide_rejection(row, item.tree, walk.node, KeyedRandom(item.key(len(walk.tokens))))
        return decisions

    def read_logprobs(self, rows: list[int], tokens: list[int], k: int) -> Sequence[Array]:
        return fetch_logprobs(self._gather(rows), tokens, k)

    def _process(self, pairs: Sequence[Pair]) -> Tensor:
        """Return the scores to draw from, ``[len(pairs), vocab]`` fp32; rows with NaN or infinity become finite."""
        numbers = current_rows(pairs)
        rows = self._gather(numbers)
        is_broken = ~rows.sum(dim=-1).isfinite()
        has_broken = bool(is_broken.any())
        if has_broken:
            rows = rows.masked_fill(is_broken[:, None], 0.0)
        rows = mask_current_nodes(rows, pairs, self.errors)
        if has_broken:
            self.errors |= {numbers[i]: NOT_FINITE for i in is_broken.nonzero()[:, 0].tolist()}
        return process(rows, [drawn_params(item) for item, _ in pairs], [item.history for item, _ in pairs])

    def _gather(self, rows: list[int]) -> Tensor:
        """Return ``[len(rows), vocab]`` fp32."""
        if len(rows) == 1:
            return self.logits[rows[0] : rows[0] + 1].float()  # a view: no copy for the most frequent case
        return _select(self.logits, rows).float()


class VisitedArgmax(VisitedDraws):
    """Draws the argmax of raw logits on a CPU; every item must be ``is_plain``."""

    def begin(self, logits: Tensor) -> list[Tensor]:
        self._table = logits.numpy() if logits.dtype == torch.float32 else None
        return super().begin(logits)

    def decide(self, pairs: Sequence[Pair]) -> list[Decision]:
        return match_tokens(pairs, [self._argmax(row) for row in current_rows(pairs)])

    def _argmax(self, row: int) -> int:
        # NumPy's argmax takes NaN for the largest, torch's is slow for bf16.
        scores = self.logits[row].float().numpy() if self._table is None else self._table[row]
        token = int(scores.argmax())
        if not isfinite(scores[token]):
            self.errors[row] = NOT_FINITE
        return token


def _select(rows: Tensor, numbers: list[int]) -> Tensor:
    upload = Upload(rows.device)
    index = upload.add(numbers)
    upload.send()
    return rows.index_select(0, index.tensor)
