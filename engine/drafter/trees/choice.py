"""From a drafter's logits to the tokens it drafts, with probabilities: the sampling side of every drafting network.

Three ways, by request:

* greedy: the best tokens of the processed logits;
* coupled sampling: the best of ``log q + g``, where ``g`` is the Gumbel noise that the target itself will add at that
  position (Daliri et al. 2024): the first is what the drafter would write in the target's place, the others follow in
  the order in which small differences between ``p`` and ``q`` would bring them up;
* rejection sampling: independent draws from ``q``, handed over with ``q``, so that ``min(1, p / q)`` applies. Their
  random numbers share nothing with the verifier's: another salt of the same key.

The estimate that the target writes a token (``Choice.scores``) is ``softmax(logits + T g)`` at that token. Both models'
logits differ by an error that does not depend on the temperature; as ``T`` goes to 0 this is the plain softmax.

A drafter may score a part of the target's vocabulary only. Tokens and ``q`` are of the target's ids all the same, and
what penalties and noise say of an id reaches the id's column. Rows are widened to all ids only where they have to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.device import fetch, is_host
from engine.sampling.history import History
from engine.sampling.keys import NoiseKey
from engine.sampling.noise import KeyedRandom, Randomness, gumbel, gumbel_row
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.sampling.shift import is_shifted
from engine.tree import FloatArray
from engine.upload import Upload

LEAST_SCORE = 1e-9  # a score is never 0
DRAFT_SALT = 0x64726674  # of the stream that drafts are drawn from; the verifier's is 0


def draft_randomness(key: NoiseKey) -> Randomness:
    """The random numbers of one ask's draws, independent of everything the verifier decides with."""
    return KeyedRandom(key, DRAFT_SALT)


def draws(params: SamplingParams) -> bool:
    """Whether drafts are independent draws with a distribution, for ``min(1, p / q)``."""
    return params.verification == "rejection" and not params.is_greedy


@dataclass(slots=True, frozen=True, eq=False)
class DraftVocabulary:
    """The part of the target's vocabulary that a drafter's logits are of."""

    ids: Tensor  # int64 [D], the target's id of every column, all different; on the logits' device
    size: int  # of the target's vocabulary
    host: npt.NDArray[np.int64]  # ``ids`` once more

    @classmethod
    def of(cls, ids: Tensor, size: int) -> DraftVocabulary:
        """Copy the ids to the host, once."""
        return cls(ids, size, ids.cpu().numpy())

    def widen(self, logits: Tensor) -> Tensor:
        """``[n, D]`` as ``[n, size]``, -inf where there is no column."""
        wide = logits.new_full((logits.shape[0], self.size), float("-inf"))
        return wide.index_copy_(1, self.ids, logits)


@dataclass(slots=True, frozen=True)
class Ask:
    """What is to be chosen behind one row."""

    params: SamplingParams
    history: History | None  # of that row's own prefix
    position: int  # of the chosen token in prompt + output
    k: int = 1  # tokens: the best of them, or so many draws


@dataclass(slots=True, frozen=True)
class Choice:
    """Tokens behind one row, best first, and the probability of each that the target writes it; maybe none.

    Draws are in the order drawn and may repeat; ``q`` ``[vocab]`` is the distribution of each of them, and there are no
    scores.
    """

    tokens: list[int]
    scores: list[float]
    q: FloatArray | None = None


def choose(
    logits: Tensor,
    asks: Sequence[Ask],
    randomness: Callable[[NoiseKey], Randomness] = draft_randomness,
    vocabulary: DraftVocabulary | None = None,
) -> list[Choice]:
    """Choices behind all rows, one ask per row; no row's depends on another row.

    Args:
        logits: ``[n, vocab]`` fp32; ``[n, D]`` with a ``vocabulary``. Not changed.
        asks: ``[n]``.
        randomness: where the draws of an ask come from, by the ask's key.
        vocabulary: which of the target's ids the columns are; None: all.
    """
    if not asks:
        return []
    scores = processed(logits, asks, vocabulary)
    drawn = [i for i, ask in enumerate(asks) if draws(ask.params)]
    ranked = [i for i, ask in enumerate(asks) if not draws(ask.params)]
    choices: dict[int, Choice] = {}
    if ranked:
        some = [asks[i] for i in ranked]
        best = rank(add_noise(select(scores, ranked), some, vocabulary), some)
        choices.update(zip(ranked, (_named(choice, vocabulary) for choice in best), strict=True))
    if drawn:
        samples = _draw(select(scores, drawn), [asks[i] for i in drawn], randomness, vocabulary)
        choices.update(zip(drawn, samples, strict=True))
    return [choices[i] for i in range(len(asks))]


def select(table: Tensor, rows: list[int]) -> Tensor:
    """Rows of ``[n, ...]`` by number; the table itself when they are all of it."""
    if rows == list(range(len(table))):
        return table
    upload = Upload(table.device)
    index = upload.add(rows)
    upload.send()
    return table.index_select(0, index.tensor)


def processed(logits: Tensor, asks: Sequence[Ask], vocabulary: DraftVocabulary | None) -> Tensor:
    """What tokens are ranked or drawn by, without noise, ``[n, vocab]`` or ``[n, D]``."""
    if vocabulary is None:
        return _process(logits, asks)
    by_id = [i for i, ask in enumerate(asks) if is_shifted(ask.params, ask.history)]
    if not by_id:
        return _process(logits, asks)
    rest = sorted(set(range(len(asks))).difference(by_id))
    scores = torch.empty_like(logits)
    wide = vocabulary.widen(select(logits, by_id))
    scores[by_id] = _process(wide, [asks[i] for i in by_id]).index_select(1, vocabulary.ids)
    if rest:
        scores[rest] = _process(select(logits, rest), [asks[i] for i in rest])
    return scores


def _process(logits: Tensor, asks: Sequence[Ask]) -> Tensor:
    return process(logits, [ask.params for ask in asks], [ask.history for ask in asks])


def add_noise(scores: Tensor, asks: Sequence[Ask], vocabulary: DraftVocabulary | None = None) -> Tensor:
    """``softmax`` of the result is the estimate of what the target writes.

    Args:
        scores: ``[n, vocab]`` or ``[n, D]``, as ``process`` leaves them; not changed.
        asks: ``[n]``, none of them draws.
        vocabulary: that of ``choose``.
    """
    noisy = [i for i, ask in enumerate(asks) if not ask.params.is_greedy]
    if not noisy:
        return scores
    keys = [_key(asks[i]) for i in noisy]
    rows_of = {key: row for row, key in enumerate(dict.fromkeys(keys))}  # nodes of one depth share their noise
    upload = Upload(scores.device)
    index, heats = upload.add(noisy), upload.add(temperatures(asks), np.float32)
    upload.send()
    noise = select(_gumbel(list(rows_of), scores, vocabulary), [rows_of[key] for key in keys])
    return scores.index_add(0, index.tensor, noise) * heats.tensor


def temperatures(asks: Sequence[Ask]) -> npt.NDArray[np.float32]:
    """What logits were divided by, ``[n, 1]``."""
    return np.array([[ask.params.temperature or 1.0] for ask in asks], np.float32)


def _gumbel(keys: list[NoiseKey], scores: Tensor, vocabulary: DraftVocabulary | None) -> Tensor:
    """The noise of every key for the columns of ``scores``, ``[n_keys, vocab]`` or ``[n_keys, D]``."""
    if vocabulary is None:
        return gumbel(keys, scores.shape[-1], scores.device)
    if is_host(scores.device):
        return torch.from_numpy(np.stack([gumbel_row(key, vocabulary.size, vocabulary.host) for key in keys]))
    return gumbel(keys, vocabulary.size, scores.device).index_select(1, vocabulary.ids)


def _key(ask: Ask) -> NoiseKey:
    return ask.params.seed, ask.params.choice, ask.position


def rank(scores: Tensor, asks: Sequence[Ask]) -> list[Choice]:
    """The best columns of every row of ``scores`` ``[n, width]``, as ``add_noise`` leaves them; none where none can be
    drawn."""
    top = torch.topk(scores, min(max(ask.k for ask in asks), scores.shape[-1]), dim=-1)
    chances = torch.exp(top.values - torch.logsumexp(scores, dim=-1, keepdim=True))
    chances = torch.where(chances > 0.0, chances.clamp(LEAST_SCORE, 1.0), chances)
    columns, values = fetch([top.indices.int(), chances])
    rows = zip(asks, columns.tolist(), values.tolist(), strict=True)
    return [_possible(ids[: ask.k], scores_of[: ask.k]) for ask, ids, scores_of in rows]


def _possible(ids: list[int], scores: list[float]) -> Choice:
    """Without the tokens that truncation took away; none of a row whose scores are infinite, or that has none: NaN."""
    n = next((i for i, score in enumerate(scores) if not score > 0.0), len(scores))
    return Choice(ids[:n], scores[:n])


def _named(choice: Choice, vocabulary: DraftVocabulary | None) -> Choice:
    """With the target's ids for columns."""
    return choice if vocabulary is None else Choice(vocabulary.host[choice.tokens].tolist(), choice.scores)


def _draw(
    scores: Tensor,
    asks: Sequence[Ask],
    randomness: Callable[[NoiseKey], Randomness],
    vocabulary: DraftVocabulary | None,
) -> list[Choice]:
    """Draws from ``softmax(scores)``; what is handed over as ``q`` is exactly what was drawn from."""
    table = torch.softmax(scores.double(), dim=-1).float().cpu().numpy()
    choices = []
    for row, ask in zip(table, asks, strict=True):
        random, weights = randomness(_key(ask)), row.astype(np.float64)
        drawn = Choice([random.draw(weights) for _ in range(ask.k)], [], row)
        if vocabulary is not None:
            q = np.zeros(vocabulary.size, np.float32)
            q[vocabulary.host] = row
            drawn = Choice(vocabulary.host[drawn.tokens].tolist(), [], q)
        choices.append(drawn)
    return choices
