"""Verification of a ragged batch of token trees: which nodes are accepted, which tokens a step commits.

A token is drawn at a node, on that node's own prefix; if a child carries it, the walk continues there. ``walk_trees``
walks; which ``Draws`` serve an item depends on the device and on the item, never the tokens. Ties go to the lowest
token id everywhere (torch's and NumPy's argmax agree on that), so a row decides alike alone, gathered, and on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from engine.device import Array, fetch, is_host
from engine.upload import Upload
from engine.verify.all_rows import AllRowDraws
from engine.verify.kernel_draws import KernelDraws, can_kernels_draw
from engine.verify.visited_rows import VisitedArgmax, VisitedDraws
from engine.verify.walk import Draws, Pair, Walk, WalkItem, walk_trees

__all__ = ["Verification", "Walk", "WalkItem", "verify"]


class Verification:
    """The verification of one step: planned, begun and finished, so that its copies travel with others of the step.

    Args:
        items: the sequences, in any mix of parameters.
        vocab: width of the logits.
        upload: carries arrays to the device; send it before ``begin``.
        has_kernels: whether an executor's kernels draw for the items that they can draw for, see ``kernel_draws``.
    """

    def __init__(self, items: Sequence[WalkItem], vocab: int, upload: Upload, has_kernels: bool = False) -> None:
        self._walks = [Walk() for _ in items]
        groups: dict[type[Draws], list[Pair]] = {KernelDraws: []} if has_kernels else {}
        on_host = is_host(upload.device)
        for pair in zip(items, self._walks, strict=True):
            if pair[0].max_new is None or pair[0].max_new > 0:
                groups.setdefault(_choose_draws(pair[0], on_host, has_kernels), []).append(pair)
        self._draws = [draws(pairs, vocab, upload) for draws, pairs in groups.items()]

    @property
    def kernel_draws(self) -> KernelDraws:
        """The draws of kernels; only if ``has_kernels``."""
        draws = self._draws[0]
        assert isinstance(draws, KernelDraws)
        return draws

    @property
    def needs_logits(self) -> bool:
        """Whether torch draws a token."""
        return any(not isinstance(draws, KernelDraws) for draws in self._draws)

    def begin(self, logits: Tensor) -> list[Tensor]:
        """Begin on the device with ``logits`` ``[rows, vocab]``, unchanged; return the tensors to fetch."""
        logits = logits.detach()
        return [tensor for draws in self._draws for tensor in draws.begin(logits)]

    def finish(self, arrays: Iterator[Array]) -> list[Walk]:
        """Return every item's walk; take the fetched tensors of ``begin`` from ``arrays``."""
        for draws in self._draws:
            draws.receive(arrays)
            walk_trees(draws)
        return self._walks


def _choose_draws(item: WalkItem, on_host: bool, has_kernels: bool) -> type[Draws]:
    if has_kernels and can_kernels_draw(item):
        return KernelDraws
    if on_host:
        return VisitedArgmax if item.is_plain else VisitedDraws
    return VisitedDraws if item.params.rejects else AllRowDraws


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
