"""How probable the tokens of prompts are, read from the rows before them: for requests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from engine.device import Array
from engine.events import TokenLogprob
from engine.sampling.logprobs import as_logprobs, logprob_tensors
from engine.step import Work
from engine.upload import Upload
from engine.verify.at_once import pieces


class PromptScores:
    """Planned on the host, begun on the device, finished on the host, as all that a step answers.

    Args:
        works: of the step.
        ks: how many of the best tokens every work wants told beside each of its own.
        firsts: where the rows of every work begin in the logits; a scored work has one for every token.
        vocab: width of the logits.
        upload: takes what has to be on their device.
    """

    def __init__(
        self, works: Sequence[Work], ks: Sequence[int], firsts: Sequence[int], vocab: int, upload: Upload
    ) -> None:
        self._works, self._ks = works, ks
        rows = [first + i for work, first in zip(works, firsts, strict=True) for i in range(len(work.scored))]
        tokens = [token for work in works for token in work.scored]
        self._pieces = [
            (upload.add(some), upload.add(theirs))
            for some, theirs in zip(pieces(rows, vocab), pieces(tokens, vocab), strict=True)
        ]

    def begin(self, logits: Tensor) -> list[Tensor]:
        """Begin on the device; returns what is to be fetched.

        Args:
            logits: ``[rows, vocab]``, any float dtype; not changed.
        """
        if not self._pieces:
            return []
        most = max(k for work, k in zip(self._works, self._ks, strict=True) if work.scored)
        told = [
            logprob_tensors(logits.index_select(0, rows.tensor), tokens.tensor, most) for rows, tokens in self._pieces
        ]
        return list(told[0] if len(told) == 1 else map(torch.cat, zip(*told, strict=True)))

    def finish(self, arrays: Iterator[Array]) -> list[list[TokenLogprob] | None]:
        """Every work's entries, one for each of its ``scored`` tokens; what follows is left in ``arrays``."""
        if not self._pieces:
            return [None] * len(self._works)
        told = [next(arrays) for _ in range(3)]
        found: list[list[TokenLogprob] | None] = []
        first = 0
        for work, k in zip(self._works, self._ks, strict=True):
            n = len(work.scored)
            its = (array[first : first + n] for array in told)
            found.append(as_logprobs(work.scored, [k] * n, *its) if n else None)
            first += n
        return found
