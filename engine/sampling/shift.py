"""Changes of logits before temperature: bias, penalties, masks. Planned on the host, applied to all rows at once.

Rows of one sequence share its bias and its history, which are sent to the device once; a row of a tree differs from
them by the tokens of its own path, a few cells that are corrected one by one. Every cell is computed by the same
operations in the same order as if its row were alone, so batches change no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.device import Array
from engine.sampling.history import History
from engine.sampling.params import SamplingParams
from engine.upload import Upload, Uploaded

_NEG_INF = float("-inf")
_PlannedShift = tuple[Callable[..., None], tuple[Array, ...]]
Shift = tuple[Callable[..., None], tuple[Uploaded, ...]]  # changes scores [n, vocab] in place, by these arrays


@dataclass(slots=True, frozen=True)
class ShiftedRow:
    """One row of logits that changes before temperature."""

    row: int
    params: SamplingParams
    history: History | None  # of its sequence, up to the root
    path: Sequence[int]  # tokens between the history and the row

    @property
    def known_history(self) -> History:
        """The history of a row that has one."""
        assert self.history is not None, "plan_shifts checks it"
        return self.history


def masks_stops(params: SamplingParams, history: History | None, path: Sequence[int] = ()) -> bool:
    """Whether ``min_tokens`` forbids stop ids after ``path``.

    Raises:
        ValueError: that depends on a history, and there is none.
    """
    if not params.min_tokens or not params.stop_ids:
        return False
    if history is None:
        raise ValueError("min_tokens needs a History")
    return history.n_output + len(path) < params.min_tokens


def is_shifted(params: SamplingParams, history: History | None, path: Sequence[int] = ()) -> bool:
    """Whether logits change before temperature; without that a greedy row's raw argmax decides."""
    return (
        bool(params.logit_bias or params.allowed_ids or params.bad_words)
        or params.has_penalties
        or masks_stops(params, history, path)
    )


def plan_shifts(rows: Sequence[ShiftedRow], vocab: int, upload: Upload) -> list[Shift]:
    """Return the changes of the rows, in order; ``upload`` carries their arrays.

    Raises:
        ValueError: a row needs a history and has none.
    """
    penalised = [row for row in rows if row.params.has_penalties]
    if any(row.history is None and row.params.remembers for row in rows):
        raise ValueError("penalties, min_tokens and bad words of several tokens need a History")
    stops = [row for row in rows if masks_stops(row.params, row.history, row.path)]
    planned = [
        *_bias([row for row in rows if row.params.logit_bias]),
        *_repetition([row for row in penalised if row.params.repetition_penalty != 1.0]),
        *_counted([row for row in penalised if row.params.presence_penalty or row.params.frequency_penalty]),
        *_forbidden([(row, token) for row in stops for token in row.params.stop_ids], vocab),
        *_forbidden([(row, token) for row in rows for token in _ends_of_bad_words(row)], vocab),
        *_allowed([row for row in rows if row.params.allowed_ids]),
    ]
    return [(change, tuple(upload.add(array, array.dtype) for array in arrays)) for change, arrays in planned]


# -- arrays that rows of one sequence share --------------------------------------------------------------------------


def _share(rows: Sequence[ShiftedRow], read: Callable[[ShiftedRow], tuple[Array, ...]]) -> tuple[Array, ...]:
    """Return row numbers ``[n, 1]``, each row's sequence ``[n]``, and tables with a line for each sequence.

    ``read`` returns the lines of a row's sequence: ids become int64, other numbers fp32.
    """
    first: dict[tuple[int, int], int] = {}
    samples: list[ShiftedRow] = []
    owners = np.empty(len(rows), np.int64)
    for i, row in enumerate(rows):
        key = id(row.params), id(row.history)
        if key not in first:
            first[key] = len(samples)
            samples.append(row)
        owners[i] = first[key]
    tables = (_table(lists) for lists in zip(*map(read, samples), strict=True))
    return np.array([[row.row] for row in rows], np.int64), owners, *tables


def _table(lists: Sequence[Array]) -> Array:
    """Return ``[len(lists), longest]``: a shorter list repeats its first entry, so that one cell gets one value."""
    dtype = np.int64 if lists[0].dtype.kind == "i" else np.float32
    if len(lists) == 1:
        return lists[0].astype(dtype, copy=False)[None]
    table = np.empty((len(lists), max(map(len, lists))), dtype)
    for line, values in zip(table, lists, strict=True):
        line[: len(values)] = values
        line[len(values) :] = values[0]
    return table


def _of_rows(table: Tensor, owners: Tensor) -> Tensor:
    """Return a table's line for every row; one line serves all rows."""
    return table if len(table) == 1 else table.index_select(0, owners)


def _indices(cells: Sequence[tuple[ShiftedRow, int]]) -> tuple[Array, Array]:
    """Return rows and ids of single cells, int64 ``[n_cells]`` each."""
    return np.array([row.row for row, _ in cells], np.int64), np.array([token for _, token in cells], np.int64)


# -- bias ------------------------------------------------------------------------------------------------------------


def _bias(rows: Sequence[ShiftedRow]) -> list[_PlannedShift]:
    return [(_add, _share(rows, lambda row: row.params.bias))] if rows else []


def _add(scores: Tensor, rows: Tensor, owners: Tensor, ids: Tensor, values: Tensor) -> None:
    at = rows, _of_rows(ids, owners)
    scores[at] = scores[at] + _of_rows(values, owners)


# -- repetition penalty ----------------------------------------------------------------------------------------------


def _repetition(rows: Sequence[ShiftedRow]) -> list[_PlannedShift]:
    """Return changes of all ids that a sequence has, then of new ids on a row's own path: no cell is in both."""
    planned: list[_PlannedShift] = []
    seen = [row for row in rows if len(row.known_history.seen)]
    if seen:
        penalties = np.array([[row.params.repetition_penalty] for row in seen], np.float32)
        planned.append((_repeat_seen, (*_share(seen, lambda row: (row.known_history.seen,)), penalties)))
    cells = [(row, token) for row in rows if row.path for token in row.known_history.unseen(row.path)]
    if cells:
        penalties = np.array([row.params.repetition_penalty for row, _ in cells], np.float32)
        planned.append((_repeat, (*_indices(cells), penalties)))
    return planned


def _repeat_seen(scores: Tensor, rows: Tensor, owners: Tensor, ids: Tensor, penalties: Tensor) -> None:
    _repeat(scores, rows, _of_rows(ids, owners), penalties)


def _repeat(scores: Tensor, rows: Tensor, ids: Tensor, penalties: Tensor) -> None:
    score = scores[rows, ids]
    scores[rows, ids] = torch.where(score < 0, score * penalties, score / penalties)


# -- presence and frequency penalties --------------------------------------------------------------------------------

_NOTHING_DRAWN = np.empty((0, 1), np.int64), np.empty(0, np.int64), np.empty((1, 0), np.int64), np.empty((1, 0), "f4")


def _counted(rows: Sequence[ShiftedRow]) -> list[_PlannedShift]:
    """Return one change: of the ids that a sequence's output has, and of cells of a row's own path, computed anew."""
    drawn = [row for row in rows if len(row.known_history.drawn)]
    shared = _share(drawn, _counts_of_output) if drawn else _NOTHING_DRAWN
    cells: list[tuple[ShiftedRow, int]] = []
    amounts: list[Array] = [np.empty(0, np.float32)]
    for row in rows:
        if row.path:
            tokens, times = row.known_history.times_with(row.path)
            cells += [(row, token) for token in tokens]
            amounts.append(_amounts(row.params, times))
    if not drawn and not cells:
        return []
    return [(_subtract, (*shared, *_indices(cells), np.concatenate(amounts)))]


def _counts_of_output(row: ShiftedRow) -> tuple[Array, Array]:
    history = row.known_history
    return history.drawn, _amounts(row.params, history.times)


def _amounts(params: SamplingParams, times: Array) -> Array:
    """Return what is subtracted from ids that occur so often, fp32."""
    amounts: Array = np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * times
    return amounts


def _subtract(
    scores: Tensor, rows: Tensor, owners: Tensor, ids: Tensor, amounts: Tensor, own: Tensor, own_ids: Tensor, of: Tensor
) -> None:
    """``rows``, ``ids`` and ``amounts`` are for whole rows; ``own``, ``own_ids`` and ``of`` ``[n_cells]`` for paths."""
    before = scores[own, own_ids] if len(own) else None
    if len(rows):
        at = rows, _of_rows(ids, owners)
        scores[at] = scores[at] - _of_rows(amounts, owners)
    if before is not None:
        scores[own, own_ids] = before - of


# -- forbidden ids, and ids that alone are allowed -------------------------------------------------------------------


def _ends_of_bad_words(row: ShiftedRow) -> Iterator[int]:
    """Yield the tokens that would complete a bad word after the row."""
    if not row.params.bad_words:
        return
    before = (*(row.history.recent if row.history is not None else ()), *row.path)
    for *head, last in row.params.bad_words:
        if not head or before[-len(head) :] == tuple(head):
            yield last


def _forbidden(cells: Sequence[tuple[ShiftedRow, int]], vocab: int) -> list[_PlannedShift]:
    cells = [cell for cell in cells if cell[1] < vocab]
    return [(_forbid, _indices(cells))] if cells else []


def _forbid(scores: Tensor, rows: Tensor, ids: Tensor) -> None:
    scores.index_put_((rows, ids), scores.new_full((), _NEG_INF))


def _allowed(rows: Sequence[ShiftedRow]) -> list[_PlannedShift]:
    return [(_keep_only, _share(rows, lambda row: (np.array(row.params.allowed_ids, np.int64),)))] if rows else []


def _keep_only(scores: Tensor, rows: Tensor, owners: Tensor, ids: Tensor) -> None:
    at = rows, _of_rows(ids, owners)
    kept = scores[at]
    scores.index_fill_(0, rows[:, 0], _NEG_INF)
    scores[at] = kept
