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

from math import exp, log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.tree import FloatArray, IntArray
from retrieval_store.index.jit import compiled_in_place
from speculators.successors.corpora import Corpora, corpus_bucket, count_followers, longest_match
from speculators.successors.table import NONE, TAIL, Table, find, hash_tail
from speculators.successors.vocabulary import VocabularyRows, pair_row

MAX_CANDIDATES = 512
SLOTS = 2 * MAX_CANDIDATES  # of the index of candidates by token; a power of two, never full
OUTSIDE = 128.0  # tokens that share what the candidates leave ...
GREEDY = 1.0  # temperature that stands for the argmax of probabilities that are only estimated
UNSEEN = 0.3  # ... and of which so much really goes to none of them (fitted at temperatures 0.6 to 1)
_TRIPLE32 = (np.uint32(0xED5AD4BB), np.uint32(0xAC4C1B51), np.uint32(0x31848BAB))
_GOLDEN64, _GOLDEN32 = np.uint64(0x9E3779B97F4A7C15), np.uint32(0x9E3779B9)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Model(NamedTuple):
    """Everything known about one text, and the scratch space to ask it."""

    text: Table  # counts
    target: Table  # probabilities
    corpora: Corpora  # texts to look up, those that the request may
    vocab: int  # ids that the target has
    corpus_has: IntArray  # [TAIL + 1]: 1 for orders that are looked up
    text_trust: FloatArray  # [TAIL + 1, 3, 2]: order; seen once, twice, more; several successors or one
    target_trust: FloatArray  # [TAIL + 1]: order; 0 that of the vocabulary's rows
    vocabulary: VocabularyRows  # what the target says behind tokens and pairs of any text, if it was read
    corpus_trust: FloatArray  # [TAIL + 1, BUCKETS, 2]: order; occurrences; several successors or one
    recent_ids: IntArray  # [n_recent], NONE where there is no more
    recent_weights: FloatArray  # [n_recent], sum at most 1
    recent_trust: FloatArray  # [1]
    mark: IntArray  # [SLOTS]: the mix in which a slot was last taken
    place: IntArray  # [SLOTS]: the place of its candidate there
    mix: IntArray  # [1]: number of the current mix
    ids: IntArray  # [MAX_CANDIDATES]: the current mix's candidates
    p: FloatArray  # [MAX_CANDIDATES]
    from_text: FloatArray  # [MAX_CANDIDATES]: the part of p that counts of the text gave
    from_corpus: FloatArray  # [MAX_CANDIDATES]: the part of p that texts to look up gave
    spans: npt.NDArray[np.int64]  # [TAIL + 1, MOST, 2]: where the current mix's matches are
    followers: IntArray  # [FOLLOWERS]: scratch
    counts: FloatArray  # [FOLLOWERS]: scratch


class Sampling(NamedTuple):
    """How the target will draw; ``noise_key`` is 0 where its noise is not to be known."""

    temperature: float
    noise_key: Any  # uint64: of (seed, choice), before the position


@compiled_in_place
def slot_of(model: Model, token: int) -> int:
    """The slot of ``token`` in the index of candidates; free (``mark`` is another mix's) if it is none.

    Not an array over the vocabulary: most of its lines would be far from the processor at every step.
    """
    slot = int(np.uint32(np.uint32(token) * _GOLDEN32) >> np.uint32(16)) & (SLOTS - 1)
    while model.mark[slot] == model.mix[0] and model.ids[model.place[slot]] != token:
        slot = (slot + 1) & (SLOTS - 1)
    return slot


@compiled_in_place
def add_candidate(model: Model, n: int, token: int, p: float, from_text: float, from_corpus: float) -> int:
    """Give ``token`` the probability ``p``; returns the number of candidates."""
    slot = slot_of(model, token)
    if model.mark[slot] == model.mix[0]:
        place = model.place[slot]
        model.p[place] += p
        model.from_text[place] += from_text
        model.from_corpus[place] += from_corpus
        return n
    if n == MAX_CANDIDATES:
        return n
    model.mark[slot] = model.mix[0]
    model.place[slot] = n
    model.ids[n] = token
    model.p[n] = p
    model.from_text[n] = from_text
    model.from_corpus[n] = from_corpus
    return n + 1


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
def mix_successors(model: Model, tail: IntArray, least: float = 0.0) -> int:
    """Candidates behind ``tail`` ``[TAIL]`` into ``model.ids``, ``p`` and ``from_text``; returns their number.

    Contributions below ``least`` are left out: they cost as much time as the others.
    """
    model.mix[0] += 1
    n = 0
    left = 1.0
    longest = longest_match(model, tail)
    for order in range(TAIL, 0, -1):
        follows = order <= longest and model.corpus_has[order]
        if not (model.text.has[order] or model.target.has[order] or follows):
            continue
        key = hash_tail(tail, order)
        if key == 0:
            continue
        row = find(model.text, key) if model.text.has[order] else NONE
        if row != NONE:
            total, bucket, single = text_bucket(model.text, row)
            share = left * model.text_trust[order, bucket, single]
            left -= share
            for i in range(model.text.ids.shape[1]):
                if model.text.ids[row, i] == NONE:
                    break
                p = share * model.text.weights[row, i] / total
                n = add_candidate(model, n, model.text.ids[row, i], p, p, 0.0)
        row = find(model.target, key) if model.target.has[order] else NONE
        if row != NONE:
            share = left * model.target_trust[order]
            left -= share
            n = _add_row(model, n, model.target.ids, model.target.weights, row, share, least)
        elif order == 2:
            row = pair_row(model.vocabulary, tail[TAIL - 2], tail[TAIL - 1])
            if row != NONE:
                share = left * model.target_trust[order]
                left -= share
                n = _add_row(model, n, model.vocabulary.pair_ids, model.vocabulary.pair_weights, row, share, least)
        if follows:
            n, left = _add_followers(model, n, order, left, least)
        if left < 0.003:
            return n
    token = tail[TAIL - 1]
    if 0 <= token < len(model.vocabulary.ids):
        share = left * model.target_trust[0]
        left -= share
        n = _add_row(model, n, model.vocabulary.ids, model.vocabulary.weights, token, share, least)
    for i in range(len(model.recent_ids)):
        if model.recent_ids[i] == NONE:
            break
        p = left * model.recent_trust[0] * model.recent_weights[i]
        if p < least:
            break
        n = add_candidate(model, n, model.recent_ids[i], p, 0.0, 0.0)
    return n


@compiled_in_place
def _add_row(model: Model, n: int, ids: IntArray, weights: FloatArray, row: int, share: float, least: float) -> int:
    """Candidates of what the target said, a row of ``ids`` and ``weights``; returns their number."""
    for i in range(ids.shape[1]):
        if ids[row, i] == NONE:
            break
        p = share * weights[row, i]
        if p >= least:
            n = add_candidate(model, n, ids[row, i], p, 0.0, 0.0)
    return n


@compiled_in_place
def _add_followers(model: Model, n: int, order: int, left: float, least: float) -> Any:
    """Candidates of a match in texts to look up; returns (their number, what is left)."""
    n_followers = count_followers(model, order)
    if n_followers == 0:
        return n, left
    total = 0.0
    for i in range(n_followers):
        total += model.counts[i]
    share = left * model.corpus_trust[order, corpus_bucket(total), 1 if n_followers == 1 else 0]
    for i in range(n_followers):
        p = share * model.counts[i] / total
        if p >= least:
            n = add_candidate(model, n, model.followers[i], p, 0.0, p)
    return n, left - share


@compiled_in_place
def mix64(x: Any) -> Any:
    """``engine.sampling.keys.mix64``."""
    x = x + _GOLDEN64
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))


@compiled_in_place
def exponential(key: Any, token: int) -> float:
    """``exp(-gumbel)`` of a token under a position's key: the same bits as ``engine.sampling.noise.gumbel``."""
    x = np.uint32(np.uint32(token) * _GOLDEN32) + np.uint32(key & np.uint64(0xFFFFFFFF))
    x = np.uint32(x)
    x = np.uint32((x ^ (x >> np.uint32(17))) * _TRIPLE32[0])
    x ^= np.uint32(key >> np.uint64(32))
    x = np.uint32((x ^ (x >> np.uint32(11))) * _TRIPLE32[1])
    x = np.uint32((x ^ (x >> np.uint32(15))) * _TRIPLE32[2])
    x ^= x >> np.uint32(14)
    return -log((x + 0.5) * 2.0**-32)


@compiled_in_place
def weigh_draws(model: Model, n: int, sampling: Sampling, position: int) -> None:
    """``model.p`` of ``n`` candidates becomes the probability that the target draws them at ``position``.

    Greedy: no token outside is likely to be the argmax, so candidates share most of what is left. Sampling: with the
    temperature, which sharpens candidates and what is outside alike. Where the target draws by coupled noise, the noise
    of every candidate is known: v is drawn if ``log p(v) + g(v)`` is largest. With p only estimated that is taken as
    likely as ``p(v) e^g(v)`` is against the others', times the chance that no token outside the candidates beats it.
    """
    if n == 0:
        return
    temperature = sampling.temperature if sampling.temperature > 0.0 else GREEDY
    sum_p = 0.0
    top = 0.0
    for i in range(n):
        sum_p += model.p[i]
        top = max(top, model.p[i])
    outside = max(1.0 - sum_p, 1e-3) / OUTSIDE  # of each token outside
    top = max(top, outside)  # what is largest becomes 1: nothing overflows, and not everything underflows
    inverse = 1.0 / temperature
    rest = UNSEEN * OUTSIDE * (outside / top) ** inverse
    total = rest
    for i in range(n):
        scaled = model.p[i] / top
        if inverse != 1.0:
            scaled **= inverse
        model.from_text[i] *= scaled / max(model.p[i], 1e-30)
        model.from_corpus[i] *= scaled / max(model.p[i], 1e-30)
        model.p[i] = scaled
        total += scaled
    rest /= total
    for i in range(n):
        model.p[i] /= total
        model.from_text[i] /= total
        model.from_corpus[i] /= total
    if sampling.noise_key == 0 or sampling.temperature == 0.0:
        return
    key = mix64(sampling.noise_key ^ np.uint64(position))
    total = 0.0
    for i in range(n):
        lifted = model.p[i] / exponential(key, model.ids[i])
        model.from_text[i] *= lifted / max(model.p[i], 1e-30)
        model.from_corpus[i] *= lifted / max(model.p[i], 1e-30)
        model.p[i] = lifted
        total += lifted
    if total == 0.0:
        return
    for i in range(n):
        factor = exp(-rest / max(model.p[i], 1e-30)) / total
        model.p[i] *= factor
        model.from_text[i] *= factor
        model.from_corpus[i] *= factor
