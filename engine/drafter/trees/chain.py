"""A draft without alternatives: token by token, as the drafter itself would go on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.drafter.trees.choice import Ask, Choice, draws
from engine.protocol import Branch
from engine.sampling.history import History
from engine.sampling.params import SamplingParams
from engine.tree import ROOT, FloatArray


class Chain:
    """Ends at ``depth`` tokens, at a stop id or where none can be drawn.

    A history takes part in it: the only draft that penalties allow.

    Args:
        params: the request's.
        history: of prompt and output; every token but the last is added to it.
        position: of the first drafted token in prompt + output.
        depth: at most so many tokens.
    """

    def __init__(self, params: SamplingParams, history: History | None, position: int, depth: int) -> None:
        self._params = params
        self._history = history
        self._position = position
        self._depth = depth
        self._tokens: list[int] = []
        self._scores: list[float] = []
        self._q: list[FloatArray] = []

    def asks(self) -> list[Ask]:
        """The next token."""
        return [Ask(self._params, self._history, self._position + len(self._tokens))]

    def take(self, choices: Sequence[Choice]) -> list[int]:
        """One token more."""
        [choice] = choices
        if not choice.tokens:
            return []
        token = choice.tokens[0]
        self._tokens.append(token)
        if choice.q is not None:
            self._q.append(choice.q)
        else:
            self._scores.append(choice.scores[0])
        if len(self._tokens) == self._depth or token in self._params.stop_ids:
            return []
        if self._history is not None:
            self._history.add(token)
        return [len(self._tokens) - 1]

    def token(self, candidate: int) -> int:
        """By its place in the chain."""
        return self._tokens[candidate]

    def parent(self, candidate: int) -> int:
        """The one before."""
        return candidate - 1 if candidate else ROOT

    def branch(self, source: str) -> Branch | None:
        """The chain."""
        if not self._tokens:
            return None
        if draws(self._params):
            return Branch(self._tokens, source, q=np.stack(self._q))
        return Branch(self._tokens, source, scores=self._scores)
