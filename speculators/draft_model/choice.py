"""From a drafter's logits to the tokens it drafts, with probabilities: the sampling side of ``draft-model``.

Three ways, by request:

* greedy: the best tokens of the processed logits;
* coupled sampling: the best of ``log q + g``, where ``g`` is the Gumbel noise that the target itself will add at that
  position (Daliri et al. 2024): the first is what the drafter would write in the target's place, the others follow in
  the order in which small differences between ``p`` and ``q`` would bring them up;
* rejection sampling: one independent draw from ``q``, handed over with ``q``, so that ``min(1, p / q)`` applies. Its
  random numbers share nothing with the verifier's: another salt of the same key.

The estimate that the target writes a token (``Choice.scores``) is ``softmax(logits + T g)`` at that token. Both models'
logits differ by an error that does not depend on the temperature; as ``T`` goes to 0 this is the plain softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.sampling.history import History
from engine.sampling.keys import NoiseKey
from engine.sampling.noise import KeyedRandom, gumbel
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.tree import FloatArray
from engine.verify.rules import Randomness

_LEAST = 1e-9  # a score is never 0
DRAFT_SALT = 0x64726674  # of the stream that drafts are drawn from; the verifier's is 0


def draft_randomness(key: NoiseKey) -> Randomness:
    """The random numbers of one draw, independent of everything the verifier decides with."""
    return KeyedRandom(key, DRAFT_SALT)


def draws(params: SamplingParams) -> bool:
    """Whether drafts are independent draws with a distribution, for ``min(1, p / q)``."""
    return params.verification == "rejection" and not params.is_greedy


@dataclass(slots=True, frozen=True)
class Ask:
    """What is to be chosen behind one row."""

    params: SamplingParams
    history: History | None  # of that row's own prefix
    position: int  # of the chosen token in prompt + output
    k: int = 1  # tokens, best first; a draw is always one


@dataclass(slots=True, frozen=True)
class Choice:
    """Tokens behind one row, best first, and the probability of each that the target writes it.

    For a draw, ``q`` ``[vocab]`` is the distribution it came from, and there are no scores.
    """

    tokens: list[int]
    scores: list[float]
    q: FloatArray | None = None


def choose(
    logits: Tensor, asks: Sequence[Ask], randomness: Callable[[NoiseKey], Randomness] = draft_randomness
) -> list[Choice]:
    """Choices behind all rows of ``logits`` ``[n, vocab]`` fp32, one ask per row."""
    scores = process(logits, [ask.params for ask in asks], [ask.history for ask in asks])
    choices: dict[int, Choice] = {}
    ranked = [i for i, ask in enumerate(asks) if not draws(ask.params)]
    if ranked:
        best = _rank(scores if len(ranked) == len(asks) else scores[ranked], [asks[i] for i in ranked])
        choices.update(zip(ranked, best, strict=True))
    for i in range(len(asks)):
        if i not in choices:
            choices[i] = _draw(scores[i], randomness(_key(asks[i])))
    return [choices[i] for i in range(len(asks))]


def _key(ask: Ask) -> NoiseKey:
    return ask.params.seed, ask.params.choice, ask.position


def _rank(scores: Tensor, asks: Sequence[Ask]) -> list[Choice]:
    """Best tokens of every row; ``scores`` ``[n, vocab]`` as ``process`` leaves them."""
    noisy = [i for i, ask in enumerate(asks) if not ask.params.is_greedy]
    if noisy:
        keys = [_key(asks[i]) for i in noisy]
        rows_of = {key: row for row, key in enumerate(dict.fromkeys(keys))}  # nodes of one depth share their noise
        noise = gumbel(list(rows_of), scores.shape[-1], scores.device)
        if len(rows_of) < len(keys):
            noise = noise[[rows_of[key] for key in keys]]
        heat = torch.tensor([[ask.params.temperature or 1.0] for ask in asks], device=scores.device)
        scores = scores.index_add(0, torch.tensor(noisy, device=scores.device), noise) * heat
    top = torch.topk(scores, min(max(ask.k for ask in asks), scores.shape[-1]), dim=-1)
    probability = torch.exp(top.values - torch.logsumexp(scores, dim=-1, keepdim=True))
    rows = zip(asks, top.indices.tolist(), probability.tolist(), strict=True)
    return [_possible(ids[: ask.k], values[: ask.k]) for ask, ids, values in rows]


def _possible(ids: list[int], probabilities: list[float]) -> Choice:
    """Without the tokens that truncation took away; the best one always stays."""
    n = max(1, sum(probability > 0.0 for probability in probabilities))
    return Choice(ids[:n], [min(1.0, max(probability, _LEAST)) for probability in probabilities[:n]])


def _draw(scores: Tensor, random: Randomness) -> Choice:
    """One draw from ``softmax(scores)``; what is handed over as ``q`` is exactly what was drawn from."""
    q = torch.softmax(scores.double(), dim=-1).float().cpu().numpy()
    return Choice([random.draw(q.astype("float64"))], [], q)
