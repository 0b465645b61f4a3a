"""Drafts from a predicted output: a request gives a text that its answer is expected to resemble.

``speculators.prediction.alignment`` tracks the places of the prediction where the answer may be; drafts are what is
predicted there. If the answer leaves the prediction, each draft only looks for a long match.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.protocol import Branch, Needs, RequestView
from engine.request import Request
from speculators.method import Method
from speculators.per_request import PerRequest
from speculators.prediction.alignment import Alignment
from speculators.prediction.drafts import draft
from speculators.settings import Settings, setting

LEAST_AT_FIRST = 0.3  # lowest path probability while the answer has not agreed with the prediction


@dataclass(frozen=True, slots=True)
class PredictionConfig(Settings):
    """Settings of ``prediction``."""

    least: float = setting(0.02, "lowest path probability of a drafted node", above=0.0, at_most=1.0)
    places: int = setting(8, "places of the prediction that are followed at once", at_least=1, at_most=64)


class Prediction(PerRequest[Alignment]):
    """Drafts what a request predicts; nothing for a request without a prediction."""

    name = "prediction"
    needs = Needs()
    catches_up = True  # a draft reads the output since the last one

    def __init__(self, config: PredictionConfig | None = None) -> None:
        super().__init__()
        self._config = config or PredictionConfig()

    @staticmethod
    def serves(request: Request) -> bool:
        """Return whether the request has a prediction."""
        return bool(request.prediction)

    def new_state(self, view: RequestView) -> Alignment:
        ids = np.array(view.request.prediction or [], np.int32)
        return Alignment(np.where((ids >= 0) & (ids < view.vocab_size), ids, -1), self._config.places)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return one branch of what is predicted where the answer may be, or nothing."""
        alignment, written = self.states[view.request_id], view.context.view[view.n_prompt :]
        if budget <= 0 or not len(alignment.predicted) or len(written) < alignment.n_read:  # an earlier context
            return []
        alignment.read(written)
        if alignment.is_lost:
            return []
        least = self._config.least if alignment.has_agreed else max(self._config.least, LEAST_AT_FIRST)
        return draft(alignment, self.name, budget, least)


PREDICTION = Method(
    name="prediction",
    factory=lambda settings, context: Prediction(settings),
    description="follows the output that a request predicts",
    settings=PredictionConfig,
)
