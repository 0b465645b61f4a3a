"""The previous name of ``speculators.mixing.merged``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from engine.protocol import Branch
from speculators.mixing.merged import MergedDrafts


class Candidates(MergedDrafts):
    """Merged drafts whose estimates also take a request id."""

    def add(  # type: ignore[override]
        self, branch: Branch, probability: Callable[[int, str, int, float | None], float], request_id: int
    ) -> None:
        super().add(branch, partial(probability, request_id))
