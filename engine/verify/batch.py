"""Verification of a ragged batch of token trees: which nodes are accepted, which tokens a step commits.

A token is drawn at a node, on that node's own prefix; if a child carries it, the walk goes on there. On a CPU the
trees are walked level by level (``engine.verify.levels``), on a device all rows are drawn at once
(``engine.verify.at_once``): the same tokens either way. Greedy sequences whose raw logits decide need an argmax only.

Ties go to the lowest token id everywhere (torch's and NumPy's argmax agree on that), so a row decides alike alone,
gathered, and on a GPU. Walking is committing: histories are updated on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from engine.device import Array, fetch, is_host
from engine.upload import Upload
from engine.verify.at_once import DrawnAtOnce
from engine.verify.levels import walk_levels
from engine.verify.walk import Pair, Walk, WalkItem

__all__ = ["Verification", "Walk", "WalkItem", "verify"]


class Verification:
    """The verification of one step: planned, begun and finished, so that its copies travel with others of the step.

    Args:
        items: the sequences, in any mix of parameters.
        vocab: width of the logits.
        upload: takes what has to be on their device, to be sent before ``begin``.
    """

    def __init__(self, items: Sequence[WalkItem], vocab: int, upload: Upload) -> None:
        self._walks = [Walk() for _ in items]
        pairs = zip(items, self._walks, strict=True)
        active = [pair for pair in pairs if pair[0].max_new is None or pair[0].max_new > 0]
        at_once: list[Pair] = []
        if not is_host(upload.device):
            at_once = [pair for pair in active if not pair[0].rejects]
            active = [pair for pair in active if pair[0].rejects]
        self._levels = active
        self._at_once = DrawnAtOnce(at_once, vocab, upload) if at_once else None

    @property
    def any(self) -> bool:
        """Whether a token is to be drawn."""
        return bool(self._levels or self._at_once)

    def begin(self, logits: Tensor) -> list[Tensor]:
        """Begin on the device; returns what is to be fetched.

        Args:
            logits: ``[rows, vocab]``, any float dtype; not changed.
        """
        self._logits = logits.detach()
        return [] if self._at_once is None else self._at_once.begin(self._logits)

    def finish(self, arrays: Iterator[Array]) -> list[Walk]:
        """Every item's walk, from what ``begin`` returned; what follows it is left in ``arrays``."""
        if self._at_once is not None:
            self._at_once.finish(arrays)
        if self._levels:
            walk_levels(self._logits, self._levels)
        return self._walks


def verify(logits: Tensor, items: Sequence[WalkItem]) -> list[Walk]:
    """Walk every tree; ``tokens`` holds at least one token per item unless its ``max_new`` is 0.

    A walk ends with a bonus token, or early: on a stop id, or when ``max_new`` tokens are drawn. A token that a
    child carries counts as accepted even when it ends the walk, so ``tokens`` is then the accepted path alone.

    Args:
        logits: ``[rows, vocab]``, any float dtype, any device; not changed.
        items: the sequences, in any mix of parameters.
    """
    upload = Upload(logits.device)
    verification = Verification(items, logits.shape[-1], upload)
    upload.send()
    return verification.finish(iter(fetch(verification.begin(logits))))
