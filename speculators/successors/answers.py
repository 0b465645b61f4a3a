"""The target's answers to the trees of a step, as arrays for compiled code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.protocol import Outcome
from engine.top_ids import TopIds
from engine.tree import FloatArray, IntArray
from speculators.successors.batch import N_LEARN_COLUMNS

_NO_IDS, _NO_WEIGHTS = np.empty((0, 0), np.int32), np.empty((0, 0), np.float32)


class StepAnswers:
    """Collects trees and ids of several requests; ``requests`` are rows for ``batch.learn_steps``, flat."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._ids: list[IntArray] = []
        self._logprobs: list[FloatArray] = []
        self._width = 0

    def add(self, outcome: Outcome) -> int | None:
        """Add what was read back; return the number of rows.

        Returns None, and adds nothing, unless there are probabilities after the root and every node, as many as for
        the other requests.
        """
        top = outcome.top_ids
        if not top:
            return 0
        if not isinstance(top, TopIds) or top.logprobs is None:
            return None
        tokens, logprobs = outcome.tree.tokens, top.logprobs
        n_rows: int = len(logprobs)
        width: int = logprobs.shape[1]
        if n_rows != len(tokens) + 1:
            return None
        if not self._ids:
            self._width = width
        elif width != self._width:
            return None
        self._tokens += tokens
        self._parents += outcome.tree.parents
        self._ids.append(top.ids)
        self._logprobs.append(logprobs)
        return n_rows

    def arrays(self) -> tuple[npt.NDArray[np.int64], IntArray, IntArray, FloatArray]:
        """Return requests ``[n, N_LEARN_COLUMNS]``, trees ``[2, n_nodes]``, ids and probabilities ``[n_rows, k]``."""
        requests = np.array(self.requests, np.int64).reshape(-1, N_LEARN_COLUMNS)
        trees = np.array(self._tokens + self._parents, np.int32).reshape(2, -1)
        if not self._ids:
            return requests, trees, _NO_IDS, _NO_WEIGHTS
        return requests, trees, np.concatenate(self._ids), np.exp(np.concatenate(self._logprobs))
