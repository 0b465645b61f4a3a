"""Chooses draft tokens from a drafter's logits, with their probabilities, in one of three ways by request.

* Greedy decoding takes the best tokens of the processed logits.
* Coupled sampling takes the best tokens of ``log q + g``, where ``g`` is the Gumbel noise that the target adds at that
  position (Daliri et al. 2024). The first is the token that the drafter would write as the target; the others follow
  in the order in which small differences between ``p`` and ``q`` would select them.
* Rejection sampling takes independent draws from ``q`` and returns ``q``, so that ``min(1, p / q)`` applies. Draws and
  verification use different salts of the same key, and share no random number.

The score of a token estimates that the target writes it: ``softmax(logits + T g)`` at the token. The error between both
models' logits does not depend on the temperature; as ``T`` goes to 0 this is the plain softmax.

A drafter may score only a part of the target's vocabulary. Tokens and ``q`` still use the target's ids, and penalties
and noise of an id reach its column. Rows are widened to all ids only if a penalty needs it.
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
DRAFT_SALT = 0x64726674  # of the random stream that drafts are drawn from; the verifier's is 0


def draft_randomness(key: NoiseKey) -> Randomness:
    """Return the random numbers of one request's draws, independent of the verifier's."""
    return KeyedRandom(key, DRAFT_SALT)


@dataclass(slots=True, frozen=True, eq=False)
class DraftVocabulary:
    """The part of the target's vocabulary that a drafter scores."""

    ids: Tensor  # int64 [D], the target's id of every column, all different; on the logits' device
    size: int  # of the target's vocabulary
    host: npt.NDArray[np.int64]  # a copy of ``ids``

    @classmethod
    def of(cls, ids: Tensor, size: int) -> DraftVocabulary:
        return cls(ids, size, ids.cpu().numpy())

    def widen(self, logits: Tensor) -> Tensor:
        """Return ``[n, D]`` as ``[n, size]``, -inf where there is no column."""
        wide = logits.new_full((logits.shape[0], self.size), float("-inf"))
        return wide.index_copy_(1, self.ids, logits)


@dataclass(slots=True, frozen=True)
class ChoiceRequest:
    """What to choose after one row."""

    params: SamplingParams
    history: History | None  # of that row's own prefix
    position: int  # of the chosen token in prompt + output
    k: int = 1  # number of best tokens, or of draws


@dataclass(slots=True, frozen=True)
class Choice:
    """Tokens after one row, best first, with the probability that the target writes each; possibly none.

    Draws come in the order drawn and may repeat. They have no scores, but their distribution ``q`` ``[vocab]``.
    """

    tokens: list[int]
    scores: list[float]
    q: FloatArray | None = None


def choose_tokens(
    logits: Tensor,
    requests: Sequence[ChoiceRequest],
    randomness: Callable[[NoiseKey], Randomness] = draft_randomness,
    vocabulary: DraftVocabulary | None = None,
) -> list[Choice]:
    """Return a choice for each row; rows do not affect each other.

    Args:
        logits: ``[n, vocab]`` fp32; ``[n, D]`` with a ``vocabulary``. Not changed.
        requests: ``[n]``.
        randomness: returns the random numbers of a request's draws, by its key.
        vocabulary: the target's ids of the columns; None: all.
    """
    if not requests:
        return []
    scores = process_rows(logits, requests, vocabulary)
    drawn = [i for i, one in enumerate(requests) if one.params.rejects]
    ranked = [i for i, one in enumerate(requests) if not one.params.rejects]
    choices: dict[int, Choice] = {}
    if ranked:
        some = [requests[i] for i in ranked]
        best = rank_tokens(add_noise(select_rows(scores, ranked), some, vocabulary), some)
        if vocabulary is not None:
            best = [Choice(vocabulary.host[choice.tokens].tolist(), choice.scores) for choice in best]
        choices.update(zip(ranked, best, strict=True))
    if drawn:
        some = [requests[i] for i in drawn]
        choices.update(zip(drawn, _draw(select_rows(scores, drawn), some, randomness, vocabulary), strict=True))
    return [choices[i] for i in range(len(requests))]


def select_rows(table: Tensor, rows: list[int]) -> Tensor:
    """Return rows of ``[n, ...]``; the table itself if they are all of it."""
    if rows == list(range(len(table))):
        return table
    upload = Upload(table.device)
    index = upload.add(rows)
    upload.send()
    return table.index_select(0, index.tensor)


def process_rows(logits: Tensor, requests: Sequence[ChoiceRequest], vocabulary: DraftVocabulary | None) -> Tensor:
    """Return the logits that rank or draw tokens, without noise, ``[n, vocab]`` or ``[n, D]``."""

    def process_some(rows: Tensor, some: Sequence[ChoiceRequest]) -> Tensor:
        return process(rows, [one.params for one in some], [one.history for one in some])

    by_id = [i for i, one in enumerate(requests) if vocabulary is not None and is_shifted(one.params, one.history)]
    if vocabulary is None or not by_id:
        return process_some(logits, requests)
    rest = sorted(set(range(len(requests))).difference(by_id))
    scores = torch.empty_like(logits)
    wide = process_some(vocabulary.widen(select_rows(logits, by_id)), [requests[i] for i in by_id])
    scores[by_id] = wide.index_select(1, vocabulary.ids)
    if rest:
        scores[rest] = process_some(select_rows(logits, rest), [requests[i] for i in rest])
    return scores


def add_noise(scores: Tensor, requests: Sequence[ChoiceRequest], vocabulary: DraftVocabulary | None) -> Tensor:
    """Return scores whose ``softmax`` estimates what the target writes.

    Args:
        scores: ``[n, vocab]`` or ``[n, D]``, as ``process`` returns them; not changed.
        requests: ``[n]``, none of which draws.
        vocabulary: as in ``choose_tokens``.
    """
    noisy = [i for i, one in enumerate(requests) if not one.params.is_greedy]
    if not noisy:
        return scores
    keys = [_key(requests[i]) for i in noisy]
    rows_of = {key: row for row, key in enumerate(dict.fromkeys(keys))}  # nodes of one depth share their noise
    upload = Upload(scores.device)
    index, temperatures = upload.add(noisy), upload.add(temperature_column(requests), np.float32)
    upload.send()
    noise = select_rows(_gumbel(list(rows_of), scores, vocabulary), [rows_of[key] for key in keys])
    return scores.index_add(0, index.tensor, noise) * temperatures.tensor


def temperature_column(requests: Sequence[ChoiceRequest]) -> npt.NDArray[np.float32]:
    """Return the divisors of logits, ``[n, 1]``."""
    return np.array([[one.params.temperature or 1.0] for one in requests], np.float32)


def _gumbel(keys: list[NoiseKey], scores: Tensor, vocabulary: DraftVocabulary | None) -> Tensor:
    """Return the noise of every key for the columns of ``scores``, ``[n_keys, vocab]`` or ``[n_keys, D]``."""
    if vocabulary is None:
        return gumbel(keys, scores.shape[-1], scores.device)
    if is_host(scores.device):
        return torch.from_numpy(np.stack([gumbel_row(key, vocabulary.size, vocabulary.host) for key in keys]))
    return gumbel(keys, vocabulary.size, scores.device).index_select(1, vocabulary.ids)


def _key(request: ChoiceRequest) -> NoiseKey:
    return request.params.seed, request.params.choice, request.position


def rank_tokens(scores: Tensor, requests: Sequence[ChoiceRequest]) -> list[Choice]:
    """Return the best columns of each row of ``scores`` ``[n, width]``, as ``add_noise`` returns them.

    A choice leaves out tokens that truncation removed; it is empty if all scores of the row are infinite or NaN.
    """
    top = torch.topk(scores, min(max(one.k for one in requests), scores.shape[-1]), dim=-1)
    chances = torch.exp(top.values - torch.logsumexp(scores, dim=-1, keepdim=True))
    chances = torch.where(chances > 0.0, chances.clamp(LEAST_SCORE, 1.0), chances)
    columns, values = fetch([top.indices.int(), chances])
    choices = []
    for request, ids, row in zip(requests, columns.tolist(), values.tolist(), strict=True):
        n = next((i for i, score in enumerate(row[: request.k]) if not score > 0.0), request.k)
        choices.append(Choice(ids[:n], row[:n]))
    return choices


def _draw(
    scores: Tensor,
    requests: Sequence[ChoiceRequest],
    randomness: Callable[[NoiseKey], Randomness],
    vocabulary: DraftVocabulary | None,
) -> list[Choice]:
    """Return draws from ``softmax(scores)``; ``q`` is exactly the distribution that was drawn from."""
    table = torch.softmax(scores.double(), dim=-1).float().cpu().numpy()
    choices = []
    for row, request in zip(table, requests, strict=True):
        random, weights = randomness(_key(request)), row.astype(np.float64)
        tokens, q = [random.draw(weights) for _ in range(request.k)], row
        if vocabulary is not None:
            tokens, q = vocabulary.host[tokens].tolist(), np.zeros(vocabulary.size, np.float32)
            q[vocabulary.host] = row
        choices.append(Choice(tokens, [], q))
    return choices
