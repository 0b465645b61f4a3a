"""Which rows of a step need logits, and what is read back from them besides the drawn tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from engine.cuda.plan.answer import AnswerTable
from engine.device import Array, is_host
from engine.protocol import Needs
from engine.step import Work
from engine.top_ids import NO_TOP_IDS, TopIds
from engine.tree import ROOT, FloatArray, IntArray
from engine.upload import Upload, Uploaded

_PIECE = 1 << 20  # logits handled at once on a CPU: what is made of them takes no new memory every time
_NO_NEEDS = Needs()
_LONG, _BLOCK = 1 << 14, 64  # ids of a row from which on blocks of it are looked at first, and of a block


@dataclass(slots=True)
class LogitRows:
    """Rows of one work that go through the head, relative to its span.

    The first ``n_walk`` rows are the root and all nodes up to the last that can be accepted (a chunk: its last
    token), in tree order, because verification addresses nodes by offset. Leaves of probes follow; inner probe
    nodes cost no head.
    """

    rows: Sequence[int]
    n_walk: int
    top_k: int = 0
    nodes: Sequence[int] = ()  # node of every row (-1 the root), trees only


def logit_rows(work: Work, needs: Needs) -> LogitRows:
    """The rows of a work that need logits."""
    if work.tree is None:
        n = len(work.tokens)
        top_k = needs.prompt_top_k if work.reads_back else 0
        if top_k or work.logprobs_of:
            return LogitRows(range(n), n, top_k)
        return LogitRows([n - 1] if work.draw else [], int(work.draw))
    tree, n = work.tree, len(work.tree)
    if not work.reads_back:
        needs = _NO_NEEDS
    top_k = max(needs.node_top_k, needs.probe_top_k)
    if not tree.has_probes:
        return LogitRows(range(n + 1), n + 1, top_k, range(ROOT, n))
    n_walk = 1 + max((node + 1 for node, probe in enumerate(tree.probe) if not probe), default=0)
    nodes = list(range(ROOT, n_walk - 1))
    if needs.node_top_k:
        nodes += range(n_walk - 1, n)
    elif needs.probe_top_k and n_walk <= n:
        nodes += sorted(node for node in tree.probe_ends if node >= n_walk - 1)
    return LogitRows([node + 1 for node in nodes], n_walk, top_k, nodes)


@dataclass(slots=True)
class TopRows:
    """The best next ids of one work: behind nodes, or behind every token of a chunk."""

    nodes: TopIds = NO_TOP_IDS
    prompt_ids: IntArray | None = None  # [chunk, k]
    prompt_logprobs: FloatArray | None = None  # [chunk, k]


@dataclass(slots=True)
class _Alike:
    """Rows of any works that are read back to one width."""

    rows: list[int] = field(default_factory=list)  # of the logits
    members: list[tuple[int, Sequence[int] | None, int]] = field(default_factory=list)  # work, nodes or None, rows
    index: Uploaded | None = None  # of the rows; None: they lie side by side

    @property
    def is_run(self) -> bool:
        """Whether the rows lie side by side."""
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
        upload: carries the row numbers to the device; send it before ``begin``. None: an executor answers all rows,
            and ``chosen`` replaces ``begin``.
    """

    def __init__(
        self,
        works: Sequence[Work],
        needs: Sequence[Needs],
        rows: Sequence[LogitRows],
        firsts: Sequence[int],
        upload: Upload | None = None,
    ) -> None:
        self._n_works = len(works)
        self._alike: dict[tuple[int, bool], _Alike] = {}  # by width, and whether log-probabilities are wanted
        for i, (work, need, its, first) in enumerate(zip(works, needs, rows, firsts, strict=True)):
            if not its.top_k:
                continue
            places = _places(work, need, its)
            if places:
                group = self._alike.setdefault((its.top_k, need.top_logprobs), _Alike())
                n, nodes = len(places), its.nodes
                if n == len(its.rows):
                    group.rows += range(first, first + n)
                else:
                    group.rows += [first + place for place in places]
                    nodes = [nodes[place] for place in places]
                group.members.append((i, None if work.tree is None else nodes, n))
        for group in self._alike.values():
            if upload is not None and not group.is_run:
                group.index = upload.add(group.rows)

    @property
    def places(self) -> list[slice | list[int]]:
        """All rows of the logits that are read back, as indices of an array."""
        return [group.places for group in self._alike.values()]

    @property
    def n_best(self) -> int:
        """Ids of the row of which most are read back."""
        return max((k for k, _ in self._alike), default=0)

    def chosen(self, table: AnswerTable) -> Iterator[Array]:
        """Yield from an executor's table what ``begin`` would have made the stage fetch."""
        for (k, with_logprobs), group in self._alike.items():
            yield table.ids[group.places, :k]
            if with_logprobs:
                yield table.logprobs[group.places, :k]

    def begin(self, logits: Tensor) -> list[Tensor]:
        """Begin on the device; returns what is to be fetched.

        Args:
            logits: ``[rows, vocab]``, any float dtype; not changed.
        """
        pending: list[Tensor] = []
        for (k, with_logprobs), group in self._alike.items():
            if group.index is None:
                picked = logits[group.rows[0] : group.rows[-1] + 1]
            else:
                picked = logits.index_select(0, group.index.tensor)
            pending += _top(picked, k, with_logprobs)
        return pending

    def finish(self, arrays: Iterator[Array]) -> list[TopRows]:
        """What every work asked for, from what ``begin`` returned; what follows is left in ``arrays``."""
        found = [TopRows() for _ in range(self._n_works)]
        for (_, with_logprobs), group in self._alike.items():
            ids = next(arrays)
            logprobs = next(arrays) if with_logprobs else None
            first = 0
            for i, nodes, n in group.members:
                # Copies: what a prompt's read-back is kept of must not hold on to that of the whole step.
                its = ids[first : first + n].copy()
                their = None if logprobs is None else logprobs[first : first + n].copy()
                first += n
                if nodes is None:
                    found[i] = TopRows(NO_TOP_IDS, its, their)
                else:
                    found[i] = TopRows(TopIds(np.array(nodes, np.int32), its, their))
        return found


def _places(work: Work, needs: Needs, rows: LogitRows) -> Sequence[int]:
    """Which of a work's rows are read back."""
    if work.tree is None or needs.node_top_k:
        return range(len(rows.rows))
    return [place for place, node in enumerate(rows.nodes) if node in work.tree.probe_ends]


def _top(logits: Tensor, k: int, with_logprobs: bool) -> list[Tensor]:
    """The ``k`` best ids of every row, best first, int32, and their log-probabilities if wanted, fp32."""
    k = min(k, logits.shape[-1])
    if not is_host(logits.device):
        return _top_of(logits, torch.topk(logits, k, dim=-1), with_logprobs)
    pieces = torch.split(logits, max(1, _PIECE // logits.shape[-1]))
    found = [_top_of(piece, _best(piece, k), with_logprobs) for piece in pieces]
    return found[0] if len(found) == 1 else [torch.cat(parts) for parts in zip(*found, strict=True)]


def _top_of(logits: Tensor, best: tuple[Tensor, Tensor], with_logprobs: bool) -> list[Tensor]:
    values, ids = best
    if not with_logprobs:
        return [ids.int()]
    return [ids.int(), values.float() - torch.logsumexp(logits.float(), dim=-1, keepdim=True)]


def _best(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``torch.topk``, on a CPU two to four times faster where rows are long; equal logits may come in another order.

    The best ``k`` lie in the ``k`` blocks with the largest maxima.
    """
    n, vocab = logits.shape
    n_blocks = vocab // _BLOCK
    if vocab < _LONG or k > n_blocks:
        values, ids = torch.topk(logits, k, dim=-1)
        return values, ids
    end = n_blocks * _BLOCK
    blocks = logits[:, :end].view(n, n_blocks, _BLOCK).amax(dim=-1).topk(k, dim=-1, sorted=False).indices
    inside = blocks.sort(dim=-1).values[:, :, None] * _BLOCK + torch.arange(_BLOCK)
    candidates = torch.cat((inside.view(n, -1), torch.arange(end, vocab).expand(n, -1)), dim=-1)
    values, places = logits.gather(-1, candidates).topk(k, dim=-1)
    return values, candidates.gather(-1, places)
