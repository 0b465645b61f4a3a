"""The tokens before a position, as penalties and a minimum length need them; they grow token by token."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engine.tree import FloatArray, IntArray, TokenBuffer

MOST_RECENT = 64  # tokens; a bad word has at most one more


class History:
    """Distinct tokens of one text, how often each was generated, and the last that were.

    Args:
        prompt: the prompt's token ids.
        output: tokens already generated (when a sequence is resumed).
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int] = ()) -> None:
        self.n_output = 0  # tokens
        self.recent: deque[int] = deque(maxlen=MOST_RECENT)  # the last tokens of the output
        unique = dict.fromkeys(int(token) for token in prompt)
        self._known = set(unique)
        self._seen = TokenBuffer(list(unique))  # distinct ids of prompt and output
        self._drawn = TokenBuffer([])  # distinct ids of the output
        self._places: dict[int, int] = {}  # id -> place in ``_drawn``
        self._times: FloatArray = np.zeros(64, np.float32)  # of every id in ``_drawn``
        for token in output:
            self.add(int(token))

    def add(self, token: int) -> None:
        """Append an output token."""
        self.n_output += 1
        self.recent.append(token)
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._drawn)
            self._drawn.extend((token,))
            if place == len(self._times):
                self._times = np.concatenate((self._times, np.zeros_like(self._times)))
        self._times[place] += 1.0
        if token not in self._known:
            self._known.add(token)
            self._seen.extend((token,))

    def copy(self) -> History:
        made = History(self.seen.tolist())
        made.n_output, made._drawn = self.n_output, TokenBuffer(self.drawn.tolist())
        made.recent = self.recent.copy()
        made._places, made._times = dict(self._places), self._times.copy()
        return made

    @property
    def seen(self) -> IntArray:
        """Distinct ids of prompt and output, int32 ``[n_distinct]``; read-only."""
        return self._seen.view

    @property
    def drawn(self) -> IntArray:
        """Distinct ids of the output, int32 ``[n_drawn]``; read-only."""
        return self._drawn.view

    @property
    def times(self) -> FloatArray:
        """How often the output has each id of ``drawn``, fp32 ``[n_drawn]``; changes as tokens are added."""
        return self._times[: len(self._drawn)]

    def unseen(self, path: Iterable[int]) -> list[int]:
        """Return distinct tokens of ``path`` that neither prompt nor output has."""
        return [token for token in dict.fromkeys(path) if token not in self._known]

    def times_with(self, path: Sequence[int]) -> tuple[list[int], FloatArray]:
        """Return distinct tokens of ``path``, and how often each occurs in the output followed by ``path``, fp32."""
        counts: dict[int, int] = {}
        for token in path:
            counts[token] = counts.get(token, 0) + 1
        before = (self._times[self._places[token]] if token in self._places else 0.0 for token in counts)
        times: npt.NDArray[np.float32] = np.fromiter(before, np.float32, len(counts))
        return [*counts], times + np.fromiter(counts.values(), np.float32, len(counts))
