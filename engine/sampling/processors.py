"""From raw logits to the scores a token is drawn from: bias, stop mask, penalties, temperature, truncation.

Order and semantics are Hugging Face's: logit bias, repetition penalty (prompt and output), then OpenAI's presence and
frequency penalties (output), ``min_tokens``, temperature, top-k, top-p, min-p. Every node of a token tree is
processed on its own prefix, so the caller hands over one ``History`` per row and updates it along the accepted path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.events import TokenLogprob
from engine.sampling.params import SamplingParams
from engine.sampling.truncation import truncate, truncates
from engine.token_buffer import TokenBuffer

_NEG_INF = float("-inf")


class History:
    """What penalties and ``min_tokens`` need to know of the tokens before a position.

    Args:
        prompt: the prompt's token ids.
        output: tokens already generated (when a sequence is resumed).
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int] = ()) -> None:
        self.n_output = 0  # tokens
        self.counts: dict[int, int] = {}  # how often each id occurs in the output
        unique = dict.fromkeys(int(token) for token in prompt)
        self._known = set(unique)
        self._seen = TokenBuffer(list(unique))  # distinct ids of prompt and output
        for token in output:
            self.add(int(token))

    def add(self, token: int) -> None:
        """One more output token."""
        self.n_output += 1
        self.counts[token] = self.counts.get(token, 0) + 1
        if token not in self._known:
            self._known.add(token)
            self._seen.extend((token,))

    def seen(self, device: torch.device) -> torch.Tensor:
        """Distinct ids of prompt and output, ``[n_distinct]`` int64."""
        return torch.from_numpy(self._seen.view).to(device, torch.int64)


def _masks_stops(params: SamplingParams, history: History | None) -> bool:
    if not params.min_tokens or not params.stop_ids:
        return False
    if history is None:
        raise ValueError("min_tokens needs a History")
    return history.n_output < params.min_tokens


def is_shifted(params: SamplingParams, history: History | None) -> bool:
    """Whether logits change before temperature; without that a greedy row's raw argmax decides."""
    return bool(params.logit_bias) or params.has_penalties or _masks_stops(params, history)


def process(
    logits: torch.Tensor, params: Sequence[SamplingParams], histories: Sequence[History | None]
) -> torch.Tensor:
    """Scores to draw from: log-probabilities up to a constant per row, -inf for what cannot be drawn.

    Greedy rows get bias, mask and penalties only: their argmax decides. Rows that need nothing cost nothing.

    Args:
        logits: ``[n, vocab]`` fp32, never changed.
        params: of every row, ``[n]``.
        histories: of every row, ``[n]``; ``None`` is fine for rows without penalties and ``min_tokens``.

    Returns:
        ``[n, vocab]`` fp32; ``logits`` itself when no row needs anything.

    Raises:
        ValueError: a row needs a history and has none.
    """
    scores = _shift(logits, params, histories)
    if any(p.temperature not in (0.0, 1.0) for p in params):
        # a tensor, because a GPU multiplies by the reciprocal when the divisor is a Python number
        scores = scores / torch.tensor([[p.temperature or 1.0] for p in params], device=scores.device)
    rows = [i for i, p in enumerate(params) if not p.is_greedy and truncates(p)]
    if not rows:
        return scores
    if len(rows) == len(params):
        return truncate(scores, params)
    index = torch.tensor(rows, device=scores.device)
    return scores.index_copy(0, index, truncate(scores[index], [params[i] for i in rows]))


def _shift(logits: torch.Tensor, params: Sequence[SamplingParams], histories: Sequence[History | None]) -> torch.Tensor:
    rows = [i for i, (p, history) in enumerate(zip(params, histories, strict=True)) if is_shifted(p, history)]
    if not rows:
        return logits
    scores = logits.clone()
    for i in rows:
        _shift_row(scores[i], params[i], histories[i])
    return scores


def _shift_row(row: torch.Tensor, params: SamplingParams, history: History | None) -> None:
    """Bias, penalties and stop mask of one row ``[vocab]``, in place."""
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=row.device)
        row[ids] += torch.tensor(list(params.logit_bias.values()), dtype=row.dtype, device=row.device)
    if params.has_penalties:
        if history is None:
            raise ValueError("penalties need a History")
        _penalise(row, params, history)
    if _masks_stops(params, history):
        row[[token for token in params.stop_ids if token < len(row)]] = _NEG_INF


def _penalise(row: torch.Tensor, params: SamplingParams, history: History) -> None:
    if params.repetition_penalty != 1.0:
        seen = history.seen(row.device)
        score = row[seen]
        penalty = params.repetition_penalty
        row[seen] = torch.where(score < 0, score * penalty, score / penalty)
    if history.counts and (params.presence_penalty or params.frequency_penalty):
        ids = torch.tensor(list(history.counts), device=row.device)
        counts = torch.tensor(list(history.counts.values()), dtype=row.dtype, device=row.device)
        row[ids] -= params.presence_penalty + params.frequency_penalty * counts


def logprobs(logits: torch.Tensor, tokens: Sequence[int], ks: Sequence[int]) -> list[TokenLogprob]:
    """Log-probabilities of drawn tokens and of the best ones, one entry per row.

    They are those of the raw distribution, before any processing, as in vLLM.

    Args:
        logits: raw logits, ``[n, vocab]``, any float dtype.
        tokens: the token drawn at every row, ``[n]``.
        ks: how many of the best tokens to report for every row, ``[n]``; may be 0.
    """
    table = torch.log_softmax(logits.float(), dim=-1)
    index = torch.tensor(tokens, device=logits.device)[:, None]
    drawn = table.gather(-1, index)[:, 0].tolist()
    best = table.topk(min(max(ks), logits.shape[-1]), dim=-1)
    rows = zip(tokens, drawn, best.indices.tolist(), best.values.tolist(), ks, strict=True)
    return [
        TokenLogprob(token, value, tuple(zip(ids[:k], values[:k], strict=True)))
        for token, value, ids, values, k in rows
    ]
