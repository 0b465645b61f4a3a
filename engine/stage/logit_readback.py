"""Reads best ids and log-probabilities of prompts back from a step's logits, apart from the drawn tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from engine.cuda.plan.answer import AnswerTable
from engine.device import Array
from engine.events import TokenLogprob
from engine.protocol import Needs
from engine.sampling.logprobs import as_logprobs, logprobs_in_pieces, split_rows, top_ids
from engine.stage.logit_rows import LogitRows
from engine.step import Work
from engine.top_ids import NO_TOP_IDS, TopIds
from engine.tree import FloatArray, IntArray
from engine.upload import Upload, Uploaded


@dataclass(slots=True)
class TopRows:
    """The best next ids of one work: after nodes, or after every token of a chunk."""

    nodes: TopIds = NO_TOP_IDS
    prompt_ids: IntArray | None = None  # [chunk, k]
    prompt_logprobs: FloatArray | None = None  # [chunk, k]


@dataclass(slots=True)
class _ReadGroup:
    """Rows of any works that are read back to one width."""

    rows: list[int] = field(default_factory=list)  # of the logits
    members: list[tuple[int, Sequence[int] | None, int]] = field(default_factory=list)  # work, nodes or None, rows
    index: Uploaded | None = None  # of the rows; None: they are adjacent

    @property
    def is_run(self) -> bool:
        """Whether the rows are adjacent."""
        return self.rows == [*range(self.rows[0], self.rows[0] + len(self.rows))]

    @property
    def places(self) -> slice | list[int]:
        """The rows as an index of an array."""
        return slice(self.rows[0], self.rows[-1] + 1) if self.is_run else self.rows


class ReadBack:
    """Reads the best next ids of a step's works back together: planned, begun on the device, finished on the host.

    Args:
        works: of the step.
        needs: of every work.
        rows: the rows of every work that have logits.
        firsts: where they begin in the logits.
        upload: carries the row numbers to the device; send it before ``begin``. None: kernels read, and ``select``
            replaces ``begin``.
    """

    def __init__(
        self,
        works: Sequence[Work],
        needs: Sequence[Needs],
        rows: Sequence[LogitRows],
        firsts: Sequence[int],
        upload: Upload | None,
    ) -> None:
        self._n_works = len(works)
        self._groups: dict[tuple[int, bool], _ReadGroup] = {}  # by width, and whether log-probabilities are read
        for i, (work, need, own, first) in enumerate(zip(works, needs, rows, firsts, strict=True)):
            places = _read_places(work, need, own) if own.top_k else ()
            if not places:
                continue
            group = self._groups.setdefault((own.top_k, need.top_logprobs), _ReadGroup())
            n, nodes = len(places), own.nodes
            if n == len(own.rows):
                group.rows += range(first, first + n)
            else:
                group.rows += [first + place for place in places]
                nodes = [nodes[place] for place in places]
            group.members.append((i, None if work.tree is None else nodes, n))
        for group in self._groups.values():
            if upload is not None and not group.is_run:
                group.index = upload.add(group.rows)

    @property
    def places(self) -> list[slice | list[int]]:
        """All rows of the logits that are read back, as indices of an array."""
        return [group.places for group in self._groups.values()]

    @property
    def n_best(self) -> int:
        """The largest number of ids read back from a row."""
        return max((k for k, _ in self._groups), default=0)

    def select(self, table: AnswerTable) -> Iterator[Array]:
        """Yield from the table of kernels the arrays that ``begin`` makes the stage fetch."""
        for (k, with_logprobs), group in self._groups.items():
            yield table.ids[group.places, :k]
            if with_logprobs:
                yield table.logprobs[group.places, :k]

    def begin(self, logits: Tensor) -> list[Tensor]:
        """Begin with ``logits`` ``[rows, vocab]``, unchanged; return the tensors to fetch."""
        pending: list[Tensor] = []
        for (k, with_logprobs), group in self._groups.items():
            if group.index is None:
                picked = logits[group.rows[0] : group.rows[-1] + 1]
            else:
                picked = logits.index_select(0, group.index.tensor)
            pending += top_ids(picked, k, with_logprobs)
        return pending

    def finish(self, arrays: Iterator[Array]) -> list[TopRows]:
        """Return the ids of every work from the arrays of ``begin``; leave later arrays in ``arrays``."""
        found = [TopRows() for _ in range(self._n_works)]
        for (_, with_logprobs), group in self._groups.items():
            ids = next(arrays)
            logprobs = next(arrays) if with_logprobs else None
            first = 0
            for i, nodes, n in group.members:
                # Copies: a kept read-back must not hold that of the whole step.
                own_ids = ids[first : first + n].copy()
                own_logprobs = None if logprobs is None else logprobs[first : first + n].copy()
                first += n
                if nodes is None:
                    found[i] = TopRows(NO_TOP_IDS, own_ids, own_logprobs)
                else:
                    found[i] = TopRows(TopIds(np.array(nodes, np.int32), own_ids, own_logprobs))
        return found


def _read_places(work: Work, needs: Needs, rows: LogitRows) -> Sequence[int]:
    """Return which of a work's rows are read back."""
    if work.tree is None or needs.node_top_k:
        return range(len(rows.rows))
    return [place for place, node in enumerate(rows.nodes) if node in work.tree.probe_ends]


class PromptLogprobs:
    """Log-probabilities of a prompt's tokens, read from the rows before them: planned, begun and finished.

    Args:
        works: of the step.
        ks: number of best tokens that every work asks for in addition to its own.
        firsts: where the rows of every work begin in the logits; a work with ``logprobs_of`` has one for every token.
        vocab: width of the logits.
        upload: carries row numbers and tokens to the device; None: kernels read, and ``select`` replaces ``begin``.
    """

    def __init__(
        self, works: Sequence[Work], ks: Sequence[int], firsts: Sequence[int], vocab: int, upload: Upload | None
    ) -> None:
        self._n_works = len(works)
        self._asked = [(i, work.logprobs_of, ks[i]) for i, work in enumerate(works) if work.logprobs_of]
        self.n_best = max((k for _, _, k in self._asked), default=0)  # largest number of best tokens of a row
        rows = [firsts[i] + row for i, tokens, _ in self._asked for row in range(len(tokens))]
        tokens = [token for _, tokens, _ in self._asked for token in tokens]
        self.tokens = dict(zip(rows, tokens, strict=True))  # by rows of the logits
        self._pieces: list[tuple[Uploaded, Uploaded]] = []
        if upload is not None:
            pieces = zip(split_rows(rows, vocab), split_rows(tokens, vocab), strict=True)
            self._pieces = [(upload.add(some), upload.add(drawn)) for some, drawn in pieces]

    def select(self, table: AnswerTable) -> Iterator[Array]:
        """Yield from the table of kernels the arrays that ``begin`` makes the stage fetch."""
        if self._asked:
            rows = list(self.tokens)
            yield from (table.asked[rows], table.logprobs[rows], table.ids[rows])

    def begin(self, logits: Tensor) -> list[Tensor]:
        """Begin with ``logits`` ``[rows, vocab]``, unchanged; return the tensors to fetch."""
        pieces = ((rows.tensor, tokens.tensor) for rows, tokens in self._pieces)
        return logprobs_in_pieces(logits, pieces, self.n_best) if self._asked else []

    def finish(self, arrays: Iterator[Array]) -> list[list[TokenLogprob] | None]:
        """Return for every work one entry per token of its ``logprobs_of``; leave later arrays in ``arrays``."""
        found: list[list[TokenLogprob] | None] = [None] * self._n_works
        fetched = [next(arrays) for _ in range(3)] if self._asked else []
        first = 0
        for i, tokens, k in self._asked:
            n = len(tokens)
            found[i] = as_logprobs(tokens, [k] * n, *(array[first : first + n] for array in fetched))
            first += n
        return found
