"""Log-probabilities of a prompt's tokens, read from the rows before them: for requests that ask for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from engine.cuda.plan.answer import AnswerTable
from engine.device import Array
from engine.events import TokenLogprob
from engine.sampling.logprobs import as_logprobs, logprobs_in_pieces
from engine.step import Work
from engine.upload import Upload
from engine.verify.at_once import pieces


class PromptLogprobs:
    """Planned on the host, begun on the device, finished on the host, as all that a step answers.

    Args:
        works: of the step.
        ks: number of best tokens that every work asks for in addition to its own.
        firsts: where the rows of every work begin in the logits; a work with ``logprobs_of`` has one for every token.
        vocab: width of the logits.
        upload: carries row numbers and tokens to the device; None: an executor answers all rows, and ``chosen``
            replaces ``begin``.
    """

    def __init__(
        self,
        works: Sequence[Work],
        ks: Sequence[int],
        firsts: Sequence[int],
        vocab: int,
        upload: Upload | None = None,
    ) -> None:
        self._n_works = len(works)
        wanted = [(i, work.logprobs_of) for i, work in enumerate(works) if work.logprobs_of]
        self._wanted = [(i, tokens, ks[i]) for i, tokens in wanted]
        rows = [firsts[i] + row for i, tokens in wanted for row in range(len(tokens))]
        theirs = [token for _, tokens in wanted for token in tokens]
        self.tokens = dict(zip(rows, theirs, strict=True))  # by rows of the logits
        self._pieces = []
        if upload is not None:
            both = zip(pieces(rows, vocab), pieces(theirs, vocab), strict=True)
            self._pieces = [(upload.add(some), upload.add(drawn)) for some, drawn in both]

    @property
    def n_best(self) -> int:
        """Largest number of best tokens that a row is asked for."""
        return max((k for _, _, k in self._wanted), default=0)

    def chosen(self, table: AnswerTable) -> Iterator[Array]:
        """Yield from an executor's table what ``begin`` would have made the stage fetch."""
        if self._wanted:
            rows = list(self.tokens)
            yield from (table.asked[rows], table.logprobs[rows], table.ids[rows])

    def begin(self, logits: Tensor) -> list[Tensor]:
        """Begin on the device; returns what is to be fetched.

        Args:
            logits: ``[rows, vocab]``, any float dtype; not changed.
        """
        if not self._wanted:
            return []
        some = ((rows.tensor, tokens.tensor) for rows, tokens in self._pieces)
        return logprobs_in_pieces(logits, some, self.n_best)

    def finish(self, arrays: Iterator[Array]) -> list[list[TokenLogprob] | None]:
        """Of every work, one entry per token of its ``logprobs_of``; what follows is left in ``arrays``."""
        found: list[list[TokenLogprob] | None] = [None] * self._n_works
        told = [next(arrays) for _ in range(3)] if self._wanted else []
        first = 0
        for i, tokens, k in self._wanted:
            n = len(tokens)
            found[i] = as_logprobs(tokens, [k] * n, *(array[first : first + n] for array in told))
            first += n
        return found
