"""Counts and perplexities of the kept and dropped texts of each input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from app.corpus.inputs import CorpusInput
from retrieval_store.refine.selection import Bools, Numbers, repeated, too_short
from retrieval_store.refine.texts import FolderTexts, Rows

QUANTILES = {"lowest": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "highest": 1.0}
Perplexities = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TextSelection:
    """Which texts are kept, and why the others are not."""

    rows: Rows  # [n], all texts
    is_short: Bools  # [n]
    is_repeated: Bools  # [n], of those that are not short
    is_outside: Bools  # [n], of the others: they have tokens that the model does not know
    perplexities: Perplexities | None  # [n], NaN where nothing was scored; None: unrefined
    is_kept: Bools  # [n]
    is_per_input: bool = False  # every input has a threshold of its own
    has_threshold: bool = True  # the likeliest texts are kept

    @property
    def kept(self) -> Numbers:
        """Numbers of the kept texts, in the order of reading."""
        return np.flatnonzero(self.is_kept)

    @property
    def range(self) -> tuple[float, float] | None:
        """Lowest and highest perplexity of the kept texts."""
        if self.perplexities is None:
            return None
        found = self.perplexities[self.is_kept]
        return float(found.min()), float(found.max())

    def threshold(self, mine: Bools) -> float | None:
        """The highest kept perplexity for texts ``mine`` ``[n]`` of one input; None if none was kept, or others not."""
        assert self.perplexities is not None, "an unrefined corpus has no perplexities"
        kept = self.perplexities[self.is_kept & mine if self.is_per_input else self.is_kept]
        return float(kept.max()) if len(kept) and self.has_threshold else None


def dropped(rows: Rows, shortest: int) -> tuple[Bools, Bools]:
    """(is_short, is_repeated), both ``[n]``: too short texts, and those of the others that repeat an earlier text."""
    is_short = too_short(rows, shortest)
    is_repeated = np.zeros(len(rows), np.bool_)
    is_repeated[~is_short] = repeated(rows[~is_short])
    return is_short, is_repeated


def outside(texts: FolderTexts, mine: Bools, vocab_size: int) -> Bools:
    """Which of texts ``mine`` ``[n]`` have ids of the tokenizer that the model's vocabulary lacks."""
    found = np.zeros(len(mine), np.bool_)
    for text in np.flatnonzero(mine):
        found[text] = texts.tokens(int(text)).max(initial=0) >= vocab_size
    return found


def figures(choice: TextSelection, inputs: Sequence[CorpusInput]) -> list[dict[str, Any]]:
    """Counts and perplexities by input."""
    return [
        {"name": one.name, "sha256": one.sha256, "bytes": one.bytes, **_counts(choice, choice.rows["source"] == i)}
        for i, one in enumerate(inputs)
    ]


def totals(choice: TextSelection) -> dict[str, Any]:
    """Counts and perplexities over all inputs."""
    return _counts(choice, np.ones(len(choice.rows), np.bool_))


def _counts(choice: TextSelection, mine: Bools) -> dict[str, Any]:
    lengths = choice.rows["length"].astype(np.int64)
    kept = mine & choice.is_kept
    found: dict[str, Any] = {
        "documents": len(np.unique(choice.rows["document"][mine])),
        "texts": int(mine.sum()),
        "tokens": int(lengths[mine].sum()),
        "too_short": int((mine & choice.is_short).sum()),
        "repeated": int((mine & choice.is_repeated).sum()),
        "outside_vocabulary": int((mine & choice.is_outside).sum()),
        "scored": 0,
        "kept": int(kept.sum()),
        "kept_tokens": int(lengths[kept].sum()),
    }
    if choice.perplexities is not None:
        is_scored = mine & ~np.isnan(choice.perplexities)
        found["scored"] = int(is_scored.sum())
        found["perplexity"] = {
            "kept": quantiles(choice.perplexities[kept]),
            "dropped": quantiles(choice.perplexities[is_scored & ~kept]),
        }
    return found


def quantiles(perplexities: Perplexities) -> Mapping[str, float] | None:
    """Quantiles of the finite perplexities; None if there is none."""
    finite = perplexities[np.isfinite(perplexities)]
    if not len(finite):
        return None
    return {name: round(float(np.quantile(finite, at, method="nearest")), 4) for name, at in QUANTILES.items()}
