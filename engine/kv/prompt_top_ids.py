"""Prompt top ids: the target's best next ids after every token of a text. They grow chunk by chunk with the prompt.

They grow step by step with the output, as long as every step reads ids back: an output is as good a prefix as a prompt.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from engine.protocol import Needs
from engine.tree import FloatArray, IntArray


class PromptTopIds:
    """Ids of every position, best first, and their log-probabilities if the speculator needs them."""

    def __init__(self) -> None:
        self.n = 0  # positions
        self._firsts: list[int] = []  # of every chunk
        self._ids: list[IntArray] = []
        self._logprobs: list[FloatArray] = []

    def append(self, ids: IntArray, logprobs: FloatArray | None) -> None:
        """Append the next positions: ``ids`` ``[n, k]``, and ``logprobs`` of the same shape, always or never."""
        self._firsts.append(self.n)
        self.n += len(ids)
        self._ids.append(ids)
        if logprobs is not None:
            self._logprobs.append(logprobs)

    def part(self, first: int, last: int) -> tuple[IntArray | None, FloatArray | None]:
        """Return ids and log-probabilities of positions ``first`` to ``last - 1``; None where none were appended."""
        last = max(first, last)
        return self._part(self._ids, first, last), self._part(self._logprobs, first, last)

    def _part(self, chunks: list[Any], first: int, last: int) -> Any:
        """Return the rows, without a copy where one chunk holds them all."""
        if not chunks:
            return None
        begin = max(0, bisect_right(self._firsts, first) - 1)
        end = max(begin + 1, bisect_right(self._firsts, last - 1))
        found = chunks[begin:end]
        whole = found[0] if len(found) == 1 else np.concatenate(found)
        return whole[first - self._firsts[begin] : last - self._firsts[begin]]

    def n_for(self, needs: Needs) -> int | None:
        """Return how many positions satisfy ``needs``; None: all, because ``needs`` asks for no prompt top ids."""
        if not needs.prompt_top_k:
            return None
        if not self._ids or self._ids[0].shape[1] < needs.prompt_top_k or (needs.top_logprobs and not self._logprobs):
            return 0
        return self.n

    def copy(self, n: int, needs: Needs) -> PromptTopIds:
        """Return the first ``n`` positions in the width of ``needs``; ``n`` must be at most ``n_for(needs)``."""
        copied = PromptTopIds()
        if needs.prompt_top_k and n:
            ids, logprobs = self.part(0, n)
            assert ids is not None
            k = needs.prompt_top_k
            copied.append(ids[:, :k], logprobs[:, :k] if needs.top_logprobs and logprobs is not None else None)
        return copied
