"""Predicted outputs: the request brings a text that it expects the answer to be much like; drafts follow it.

An edit of a file, a JSON document with other values, code with a symbol renamed: most of the answer is known before.
``speculators.prediction.alignment`` keeps the places of the prediction where the answer may be, and drafts are what is
predicted there. A prediction that is of no use is given up soon; from then on a draft takes one look for a match. The
text cannot change: whatever is predicted, the target's own tokens are taken.
"""

from __future__ import annotations

import numpy as np

from engine.protocol import Branch, Needs, Outcome, RequestView
from speculators.prediction.alignment import Alignment
from speculators.prediction.config import PredictionConfig
from speculators.prediction.growth import grow

DOUBTFUL = 0.3  # least path probability of a node while nothing of the prediction was written


class Prediction:
    """Drafts what a request predicts; nothing for a request without a prediction."""

    name = "prediction"
    needs = Needs()
    catches_up = True  # a draft reads all of the output that no earlier one has
    drafts_beside = True  # from what no source that counts the context knows

    def __init__(self, config: PredictionConfig | None = None) -> None:
        self._config = config or PredictionConfig()
        self._alignments: dict[int, Alignment] = {}

    def begin(self, view: RequestView) -> None:
        """The answer is expected to begin as the prediction does."""
        if view.request.prediction:
            self._alignments[view.request_id] = alignment_of(view.request.prediction, view.vocab_size, self._config)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """One tree of what is predicted at the places where the answer may be."""
        alignment = self._alignments.get(view.request_id)
        if alignment is None or budget <= 0:
            return []
        written = view.context.view[view.n_prompt :]
        if len(written) < alignment.n_read:  # an earlier place than one that is known
            return []
        alignment.read(written)
        if alignment.is_lost:
            return []
        least = self._config.least if alignment.has_agreed else max(self._config.least, DOUBTFUL)
        tokens, parents, scores = grow(alignment, budget, least)
        return [Branch(tokens, self.name, parents, scores=scores)] if tokens else []

    def repeated(self, view: RequestView, longest: int) -> int:
        """How many tokens at the end of the answer, at most ``longest``, stand in the prediction in the same order."""
        alignment = self._alignments.get(view.request_id)
        written = view.context.view[view.n_prompt :]
        if alignment is None or not len(written):
            return 0
        return alignment.repeated(written, longest)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Nothing to learn: the owner of the view has already appended the tokens."""

    def end(self, view: RequestView) -> None:
        """Drop the alignment."""
        self._alignments.pop(view.request_id, None)


def alignment_of(prediction: list[int], vocab_size: int, config: PredictionConfig | None = None) -> Alignment:
    """The alignment of an answer that has not begun; ids that a target of this vocabulary cannot write are -1."""
    ids = np.array(prediction, np.int32)
    return Alignment(np.where((ids >= 0) & (ids < vocab_size), ids, -1), (config or PredictionConfig()).places)
