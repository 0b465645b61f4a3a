"""Compiled mixture of all that is known to follow a context, in one distribution.

From the longest order down to 0, every row found takes its share of the probability that is left (its *trust*): first
what the text itself showed (counts), then what the target said after such a context (its top probabilities), then what
followed it in a corpus (counts). If the target has said nothing after the last two tokens or the last one, the rows of
its vocabulary replace that (``speculators.successors.vocabulary``). The rest goes to *recent* tokens, those that the
target considered in the last steps: they cover unknown contexts. Stick-breaking as in PPM; the trusts were fitted on
other prompts than any reported figure (docs/methods).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from engine.compiled import compiled_in_place
from engine.tree import FloatArray, IntArray
from speculators.successors.candidates import SuccessorCandidates, add_candidate, clear_candidates
from speculators.successors.corpora import Lookup, count_followers, longest_match
from speculators.successors.table import NONE, TAIL, Table, find, hash_tail
from speculators.successors.vocabulary import VocabularyRows, pair_row

TEXT_SOURCE, TARGET_SOURCE, CORPUS_SOURCE = range(3)  # places in ``config.SOURCES``
TARGET_COLUMN, CORPUS_COLUMN, N_COLUMNS = 6, 7, 15  # of trusts, see ``initial_trusts``
EXPLAINED = 0.003  # probability left at which shorter contexts are not looked up


class SuccessorModel(NamedTuple):
    """Everything known about one text, and the scratch space to query it."""

    text: Table  # counts
    target: Table  # probabilities
    vocabulary: VocabularyRows  # what the target says after tokens and pairs in any text, if it was read
    lookup: Lookup
    trusts: FloatArray  # [TAIL + 1, N_COLUMNS]: by order, see ``initial_trusts``
    recent_ids: IntArray  # [n_recent], ends at NONE
    recent_weights: FloatArray  # [n_recent], sum at most 1
    recent_trust: FloatArray  # [1]
    candidates: SuccessorCandidates


def initial_trusts() -> FloatArray:
    """Return the trusts of a new request, ``[TAIL + 1, N_COLUMNS]`` by order; ``adapt`` moves them from there.

    Columns: 6 for the text (seen once, twice, more; each with several successors or one), 1 for the target, 8 for the
    corpus (one occurrence, two or three, up to 15, more; each with several successors or one). They were fitted by
    maximum likelihood at temperature 0.8 on other prompts than any reported figure, rounded, and made to rise with the
    counts.
    """
    text = np.zeros((TAIL + 1, 3, 2), np.float32)
    text[1:, :, 0] = (0.11, 0.12, 0.15)
    text[1:, :, 1] = (0.10, 0.25, 0.45)
    text[1, :, 1] = (0.15, 0.28, 0.78)
    text[2, 2, 1] = 0.65
    text[7:, 1, 1] = 0.50
    target = np.full((TAIL + 1, 1), 0.25, np.float32)
    target[:5, 0] = (0.30, 0.44, 0.50, 0.20, 0.20)
    corpus = np.zeros((TAIL + 1, 4, 2), np.float32)
    corpus[1:, :, 0] = (0.15, 0.10, 0.14, 0.18)
    corpus[1:, :, 1] = (0.08, 0.19, 0.32, 0.40)
    corpus[6:, :2, 1] = (0.18, 0.23)
    corpus[1, 1:, 0] = (0.15, 0.27, 0.50)
    corpus[2, 3, 0] = 0.30
    return np.hstack([text.reshape(TAIL + 1, -1), target, corpus.reshape(TAIL + 1, -1)])


@compiled_in_place
def text_row(text: Table, order: int, key: Any) -> Any:
    """Return (row in ``text``, sum of its counts, column of the trust); the column is NONE if there is no row.

    It returns no arrays: they would take longer than the rest of the call, which mostly finds no row.
    """
    row = find(text, key) if text.has[order] else NONE
    if row == NONE:
        return 0, 1.0, NONE
    total = 0.0
    n = 0
    for i in range(text.ids.shape[1]):
        if text.ids[row, i] == NONE:
            break
        total += text.weights[row, i]
        n += 1
    return row, total, 2 * min(int(total) - 1, 2) + (1 if n == 1 else 0)


@compiled_in_place
def target_row(target: Table, vocabulary: VocabularyRows, tail: IntArray, order: int, key: Any) -> Any:
    """Return (ids, weights, sum of the weights, column of the trust); the column is NONE if there is no row."""
    row = find(target, key) if target.has[order] else NONE
    if row != NONE:
        return target.ids[row], target.weights[row], 1.0, TARGET_COLUMN
    if order == 2:
        row = pair_row(vocabulary, tail[TAIL - 2], tail[TAIL - 1])
        if row != NONE:
            return vocabulary.pair_ids[row], vocabulary.pair_weights[row], 1.0, TARGET_COLUMN
    last = tail[TAIL - 1]
    if order == 0 and 0 <= last < len(vocabulary.ids):
        return vocabulary.ids[last], vocabulary.weights[last], 1.0, TARGET_COLUMN
    return target.ids[0], target.weights[0], 1.0, NONE


@compiled_in_place
def corpus_row(lookup: Lookup, order: int) -> Any:
    """Return (ids, counts, sum of the counts, column of the trust); the column is NONE if there are no followers."""
    n = count_followers(lookup, order)
    total = 0.0
    for i in range(n):
        total += lookup.counts[i]
    bucket = 0 if total < 2.0 else 1 if total < 4.0 else 2 if total < 16.0 else 3
    column = CORPUS_COLUMN + 2 * bucket + (1 if n == 1 else 0) if n > 0 else NONE
    return lookup.followers[:n], lookup.counts[:n], max(total, 1.0), column


@compiled_in_place
def mix_successors(model: SuccessorModel, tail: IntArray, least: float = 0.0) -> None:
    """Set ``model.candidates`` to the successors of ``tail`` ``[TAIL]``.

    Contributions below ``least`` are left out, except those of the text: they take as much time as the others.
    """
    candidates, text, lookup, trusts = model.candidates, model.text, model.lookup, model.trusts
    clear_candidates(candidates)
    left = 1.0
    longest = longest_match(lookup, tail)
    for order in range(TAIL, -1, -1):
        if left < EXPLAINED:
            return
        follows = order <= longest and lookup.has[order]
        if order > 0 and not (text.has[order] or model.target.has[order] or follows):
            continue
        key = hash_tail(tail, order)
        if key == 0:
            continue
        row, total, column = text_row(text, order, key)
        if column != NONE:
            share = left * trusts[order, column]
            left -= share
            _add_row(candidates, text.ids[row], text.weights[row], total, share, 0.0, TEXT_SOURCE)
        ids, weights, total, column = target_row(model.target, model.vocabulary, tail, order, key)
        if column != NONE:
            share = left * trusts[order, column]
            left -= share
            _add_row(candidates, ids, weights, total, share, least, TARGET_SOURCE)
        if follows:
            ids, weights, total, column = corpus_row(lookup, order)
            if column != NONE:
                share = left * trusts[order, column]
                left -= share
                _add_row(candidates, ids, weights, total, share, least, CORPUS_SOURCE)
    share = left * model.recent_trust[0]
    _add_row(candidates, model.recent_ids, model.recent_weights, 1.0, share, least, TARGET_SOURCE)


@compiled_in_place
def _add_row(
    candidates: SuccessorCandidates,
    ids: IntArray,
    weights: FloatArray,
    total: float,
    share: float,
    least: float,
    source: int,
) -> None:
    """Add a row of successors, whose weights sum to ``total``, with a ``share`` of the probability."""
    for i in range(len(ids)):
        if ids[i] == NONE:
            break
        p = share * weights[i]
        if total != 1.0:  # probabilities need no division, which would take longer than the rest
            p /= total
        if p >= least:
            add_candidate(candidates, ids[i], p, source)
        elif source == TARGET_SOURCE:  # its rows are best first
            break
