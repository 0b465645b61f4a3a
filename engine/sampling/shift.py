"""What changes logits before temperature: bias, penalties, masks. Planned on the host, applied to all rows at once.

Rows of one sequence share its bias and its history, which are sent to the device once; a row of a tree differs from
them by the tokens of its own path, a few cells that are corrected one by one. Every cell is computed by the same
operations in the same order as if its row were alone, so batches change no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.device import Array
from engine.sampling.history import History
from engine.sampling.params import SamplingParams
from engine.sampling.shifted_row import ShiftedRow
from engine.upload import Upload, Uploaded

_NEG_INF = float("-inf")
_Planned = tuple[Callable[..., None], tuple[Array, ...]]  # a change, and the arrays it takes


@dataclass(slots=True, frozen=True)
class Operation:
    """A change of scores ``[n, vocab]`` in place, by arrays that are on their device once the upload is sent."""

    change: Callable[..., None]  # (scores, *tensors)
    parts: tuple[Uploaded, ...]

    def apply(self, scores: Tensor) -> None:
        """Change the scores."""
        self.change(scores, *(part.tensor for part in self.parts))


def masks_stops(params: SamplingParams, history: History | None, path: Sequence[int] = ()) -> bool:
    """Whether stop ids cannot be drawn yet behind ``path``.

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


def operations(rows: Sequence[ShiftedRow], vocab: int, upload: Upload) -> list[Operation]:
    """What is to be done to the rows, in order; the arrays for it come with ``upload``.

    Raises:
        ValueError: a row needs a history and has none.
    """
    penalised = [row for row in rows if row.params.has_penalties]
    if any(row.history is None and row.params.remembers for row in rows):
        raise ValueError("penalties, min_tokens and bad words of several tokens need a History")
    planned = [
        *_bias([row for row in rows if row.params.logit_bias]),
        *_repetition([row for row in penalised if row.params.repetition_penalty != 1.0]),
        *_counted([row for row in penalised if row.params.presence_penalty or row.params.frequency_penalty]),
        *_stops([row for row in rows if masks_stops(row.params, row.history, row.path)], vocab),
        *_bad_words([row for row in rows if row.params.bad_words], vocab),
        *_allowed([row for row in rows if row.params.allowed_ids]),
    ]
    return [Operation(change, tuple(upload.add(array, array.dtype) for array in arrays)) for change, arrays in planned]


# -- what rows of one sequence share ---------------------------------------------------------------------------------


def _places(rows: Sequence[ShiftedRow]) -> tuple[Array, Array, list[ShiftedRow]]:
    """Row numbers ``[n, 1]``, the place of each row's sequence among the sequences ``[n]``, a row of every sequence."""
    first: dict[tuple[int, int], int] = {}
    samples: list[ShiftedRow] = []
    owners = np.empty(len(rows), np.int64)
    for i, row in enumerate(rows):
        key = id(row.params), id(row.history)
        if key not in first:
            first[key] = len(samples)
            samples.append(row)
        owners[i] = first[key]
    return np.array([[row.row] for row in rows], np.int64), owners, samples


def _table(lists: Sequence[Array], dtype: Any) -> Array:
    """``[len(lists), longest]``: a shorter list repeats its first entry, so that a cell is written the same twice."""
    if len(lists) == 1:
        return lists[0].astype(dtype, copy=False)[None]
    table = np.empty((len(lists), max(map(len, lists))), dtype)
    for line, values in zip(table, lists, strict=True):
        line[: len(values)] = values
        line[len(values) :] = values[0]
    return table


def _of_rows(table: Tensor, owners: Tensor) -> Tensor:
    """A table's line for every row; one line serves all rows as it is."""
    return table if len(table) == 1 else table.index_select(0, owners)


# -- bias ------------------------------------------------------------------------------------------------------------


def _bias(rows: Sequence[ShiftedRow]) -> list[_Planned]:
    if not rows:
        return []
    numbers, owners, samples = _places(rows)
    ids, values = zip(*(sample.params.bias for sample in samples), strict=True)
    return [(_add, (numbers, owners, _table(ids, np.int64), _table(values, np.float32)))]


def _add(scores: Tensor, rows: Tensor, owners: Tensor, ids: Tensor, values: Tensor) -> None:
    at = rows, _of_rows(ids, owners)
    scores[at] = scores[at] + _of_rows(values, owners)


# -- repetition penalty ----------------------------------------------------------------------------------------------


def _repetition(rows: Sequence[ShiftedRow]) -> list[_Planned]:
    """First what all rows of a sequence have seen, then what is new on a row's own path: no cell is in both."""
    planned: list[_Planned] = []
    told = [row for row in rows if len(_history(row).seen)]
    if told:
        numbers, owners, samples = _places(told)
        ids = _table([_history(sample).seen for sample in samples], np.int64)
        penalties = np.array([[row.params.repetition_penalty] for row in told], np.float32)
        planned.append((_repeat_seen, (numbers, owners, ids, penalties)))
    cells = [(row, token) for row in rows if row.path for token in _history(row).unseen(row.path)]
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


def _counted(rows: Sequence[ShiftedRow]) -> list[_Planned]:
    """First what the output has, for all rows of a sequence; cells of a row's own path are then computed anew."""
    numbers, owners, samples = _places([row for row in rows if len(_history(row).drawn)])
    ids = _table([_history(sample).drawn for sample in samples], np.int64) if samples else np.empty((1, 0), np.int64)
    amounts = [_amounts(sample.params, _history(sample).times) for sample in samples]
    table = _table(amounts, np.float32) if samples else np.empty((1, 0), np.float32)
    cells: list[tuple[ShiftedRow, int]] = []
    of_cells: list[Array] = [np.empty(0, np.float32)]
    for row in rows:
        if row.path:
            tokens, times = _history(row).times_with(row.path)
            cells += [(row, token) for token in tokens]
            of_cells.append(_amounts(row.params, times))
    if not samples and not cells:
        return []
    return [(_subtract, (numbers, owners, ids, table, *_indices(cells), np.concatenate(of_cells)))]


def _amounts(params: SamplingParams, times: Array) -> Array:
    """What is subtracted from ids that occur so often, fp32."""
    amounts: Array = np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * times
    return amounts


def _subtract(
    scores: Tensor, rows: Tensor, owners: Tensor, ids: Tensor, amounts: Tensor, own: Tensor, own_ids: Tensor, of: Tensor
) -> None:
    """``rows``, ``ids`` and ``amounts`` for whole rows; ``own``, ``own_ids`` and ``of`` ``[n_cells]`` for paths."""
    before = scores[own, own_ids] if len(own) else None
    if len(rows):
        at = rows, _of_rows(ids, owners)
        scores[at] = scores[at] - _of_rows(amounts, owners)
    if before is not None:
        scores[own, own_ids] = before - of


# -- stop mask -------------------------------------------------------------------------------------------------------


def _stops(rows: Sequence[ShiftedRow], vocab: int) -> list[_Planned]:
    cells = [(row, token) for row in rows for token in row.params.stop_ids if token < vocab]
    return [(_forbid, _indices(cells))] if cells else []


def _forbid(scores: Tensor, rows: Tensor, ids: Tensor) -> None:
    scores.index_put_((rows, ids), scores.new_full((), _NEG_INF))


# -- words that must not be written, and ids that alone may be -------------------------------------------------------


def _bad_words(rows: Sequence[ShiftedRow], vocab: int) -> list[_Planned]:
    cells = [(row, token) for row in rows for token in row.last_of_words() if token < vocab]
    return [(_forbid, _indices(cells))] if cells else []


def _allowed(rows: Sequence[ShiftedRow]) -> list[_Planned]:
    if not rows:
        return []
    numbers, owners, samples = _places(rows)
    ids = _table([np.array(sample.params.allowed_ids, np.int64) for sample in samples], np.int64)
    return [(_keep_only, (numbers, owners, ids))]


def _keep_only(scores: Tensor, rows: Tensor, owners: Tensor, ids: Tensor) -> None:
    at = rows, _of_rows(ids, owners)
    kept = scores[at]
    scores.index_fill_(0, rows[:, 0], _NEG_INF)
    scores[at] = kept


def _indices(cells: Sequence[tuple[ShiftedRow, int]]) -> tuple[Array, Array]:
    """Rows and ids of single cells, int64 ``[n_cells]`` each."""
    return np.array([row.row for row, _ in cells], np.int64), np.array([token for _, token in cells], np.int64)


def _history(row: ShiftedRow) -> History:
    assert row.history is not None, "checked by operations"
    return row.history
