"""What probably follows a context: tables of several orders mixed into one distribution. Compiled.

From the longest order down, every row found takes its share (its *trust*) of the probability that is left: first what
the text itself showed (counts), then what the target said behind such a context (its top probabilities), then what
followed it in texts to look up (counts again). Where the target has said nothing behind the last two tokens, what it
says behind them in any text stands in; at last comes what it says behind the last one in any text, both as far as they
were read (``speculators.successors.vocabulary``). What remains goes to *recent* tokens, those the target considered
anywhere in the last steps: they cover contexts never seen. Stick-breaking as in PPM; the trusts were fitted on other
prompts than any reported figure (docs/methods).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from engine.compiled.functions import compiled_in_place
from engine.tree import FloatArray, IntArray
from speculators.successors.candidates import Candidates, add_candidate
from speculators.successors.corpora import Lookup, corpus_bucket, count_followers, longest_match
from speculators.successors.table import NONE, TAIL, Table, find, hash_tail
from speculators.successors.trusts import Trusts
from speculators.successors.vocabulary import VocabularyRows, pair_row


class Model(NamedTuple):
    """Everything known about one text, and the scratch space to ask it."""

    text: Table  # counts
    target: Table  # probabilities
    vocabulary: VocabularyRows  # what the target says behind tokens and pairs of any text, if it was read
    lookup: Lookup
    trusts: Trusts
    recent_ids: IntArray  # [n_recent], NONE where there is no more
    recent_weights: FloatArray  # [n_recent], sum at most 1
    recent_trust: FloatArray  # [1]
    candidates: Candidates


@compiled_in_place
def text_bucket(table: Table, row: int) -> Any:
    """(sum of counts, index of it, whether all are one token's) of a row of counts."""
    total = 0.0
    n = 0
    for i in range(table.ids.shape[1]):
        if table.ids[row, i] == NONE:
            break
        total += table.weights[row, i]
        n += 1
    return total, min(int(total), 3) - 1, 1 if n == 1 else 0


@compiled_in_place
def target_row(target: Table, vocabulary: VocabularyRows, tail: IntArray, order: int, key: Any) -> Any:
    """(row of what the target says behind the last ``order`` tokens, whether it is one of the pairs in ``vocabulary``).

    The row is NONE where nothing is known. ``key`` is that of the tokens.
    """
    row = find(target, key) if target.has[order] else NONE
    if row == NONE and order == 2:
        row = pair_row(vocabulary, tail[TAIL - 2], tail[TAIL - 1])
        return row, row != NONE
    return row, False


@compiled_in_place
def mix_successors(model: Model, tail: IntArray, least: float = 0.0) -> int:
    """Candidates behind ``tail`` ``[TAIL]`` into ``model.candidates``; returns their number.

    Contributions below ``least`` are left out: they cost as much time as the others.
    """
    candidates, lookup, trusts, vocabulary = model.candidates, model.lookup, model.trusts, model.vocabulary
    candidates.mix[0] += 1
    n = 0
    left = 1.0
    longest = longest_match(lookup, tail)
    for order in range(TAIL, 0, -1):
        follows = order <= longest and lookup.has[order]
        if not (model.text.has[order] or model.target.has[order] or follows):
            continue
        key = hash_tail(tail, order)
        if key == 0:
            continue
        row = find(model.text, key) if model.text.has[order] else NONE
        if row != NONE:
            total, bucket, single = text_bucket(model.text, row)
            share = left * trusts.text[order, bucket, single]
            left -= share
            for i in range(model.text.ids.shape[1]):
                if model.text.ids[row, i] == NONE:
                    break
                p = share * model.text.weights[row, i] / total
                n = add_candidate(candidates, n, model.text.ids[row, i], p, p, 0.0)
        row, is_pair = target_row(model.target, vocabulary, tail, order, key)
        if row != NONE:
            share = left * trusts.target[order]
            left -= share
            if is_pair:
                n = _add_row(candidates, n, vocabulary.pair_ids, vocabulary.pair_weights, row, share, least)
            else:
                n = _add_row(candidates, n, model.target.ids, model.target.weights, row, share, least)
        if follows:
            n, left = _add_followers(lookup, candidates, n, trusts.corpus, order, left, least)
        if left < 0.003:
            return n
    token = tail[TAIL - 1]
    if 0 <= token < len(vocabulary.ids):
        share = left * trusts.target[0]
        left -= share
        n = _add_row(candidates, n, vocabulary.ids, vocabulary.weights, token, share, least)
    for i in range(len(model.recent_ids)):
        if model.recent_ids[i] == NONE:
            break
        p = left * model.recent_trust[0] * model.recent_weights[i]
        if p < least:
            break
        n = add_candidate(candidates, n, model.recent_ids[i], p, 0.0, 0.0)
    return n


@compiled_in_place
def _add_row(
    candidates: Candidates, n: int, ids: IntArray, weights: FloatArray, row: int, share: float, least: float
) -> int:
    """Candidates of what the target said, a row of ``ids`` and ``weights``; returns their number."""
    for i in range(ids.shape[1]):
        if ids[row, i] == NONE:
            break
        p = share * weights[row, i]
        if p >= least:
            n = add_candidate(candidates, n, ids[row, i], p, 0.0, 0.0)
    return n


@compiled_in_place
def _add_followers(
    lookup: Lookup, candidates: Candidates, n: int, trust: FloatArray, order: int, left: float, least: float
) -> Any:
    """Candidates of a match in texts to look up, trusted as ``Trusts.corpus``; returns (their number, what is left)."""
    n_followers = count_followers(lookup, order)
    if n_followers == 0:
        return n, left
    total = 0.0
    for i in range(n_followers):
        total += lookup.counts[i]
    share = left * trust[order, corpus_bucket(total), 1 if n_followers == 1 else 0]
    for i in range(n_followers):
        p = share * lookup.counts[i] / total
        if p >= least:
            n = add_candidate(candidates, n, lookup.followers[i], p, 0.0, p)
    return n, left - share
