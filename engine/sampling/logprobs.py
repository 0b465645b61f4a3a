"""Log-probabilities of drawn tokens and of the best ones.

They are those of the raw distribution, before any processing, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from engine.device import Array, fetch
from engine.events import TokenLogprob
from engine.upload import Upload


def logprobs(logits: Tensor, tokens: Sequence[int], ks: Sequence[int]) -> list[TokenLogprob]:
    """One entry per row.

    Args:
        logits: raw logits, ``[n, vocab]``, any float dtype.
        tokens: the token drawn at every row, ``[n]``.
        ks: how many of the best tokens to report for every row, ``[n]``; may be 0.
    """
    upload = Upload(logits.device)
    drawn = upload.add(tokens)
    upload.send()
    return as_logprobs(tokens, ks, *fetch(logprob_tensors(logits, drawn.tensor, max(ks))))


def logprob_tensors(logits: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of ``tokens`` ``[n]`` and of the ``k`` best, and their ids: fp32, fp32 and int32."""
    table = torch.log_softmax(logits.float(), dim=-1)
    best = table.topk(min(k, logits.shape[-1]), dim=-1)
    return table.gather(-1, tokens.long()[:, None])[:, 0], best.values, best.indices.int()


def logprobs_in_pieces(logits: Tensor, pieces: Iterable[tuple[Tensor, Tensor]], k: int) -> list[Tensor]:
    """What ``logprob_tensors`` makes of some rows, a piece at a time, in one.

    Args:
        logits: ``[rows, vocab]``, any float dtype; not changed.
        pieces: rows, int64 ``[n]``, and a token of each, ``[n]``; at least one piece.
        k: how many of the best tokens to tell.
    """
    told = [logprob_tensors(logits.index_select(0, rows), tokens, k) for rows, tokens in pieces]
    return list(told[0] if len(told) == 1 else map(torch.cat, zip(*told, strict=True)))


def as_logprobs(
    tokens: Sequence[int], ks: Sequence[int], drawn: Array, values: Array, ids: Array
) -> list[TokenLogprob]:
    """One entry per row of what ``logprob_tensors`` made."""
    rows = zip(tokens, drawn.tolist(), ids.tolist(), values.tolist(), ks, strict=True)
    return [
        TokenLogprob(token, value, tuple(zip(best[:k], tops[:k], strict=True))) for token, value, best, tops, k in rows
    ]
