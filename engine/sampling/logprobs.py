"""Best ids of rows of logits, and log-probabilities of these and of drawn tokens.

Log-probabilities are those of the raw distribution, before any processing, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from engine.device import Array, fetch, is_host
from engine.events import TokenLogprob
from engine.upload import Upload

CELLS = 1 << 25  # logits that a device handles at once; sorting and summing them takes up to 49 bytes each, 1.6 GB
_HOST_CELLS = 1 << 20  # the same on a CPU, which then reuses memory
LONG_ROW, _BLOCK = 1 << 14, 64  # ids of a row whose blocks are searched first, ids of a block

_T = TypeVar("_T")


def split_rows(rows: Sequence[_T], vocab: int) -> list[Sequence[_T]]:
    """Return rows of logits in pieces of at most ``CELLS`` logits, and at least one row."""
    size = max(1, CELLS // vocab)
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def logprob_tensors(logits: Tensor, tokens: Tensor, k: int) -> list[Tensor]:
    """Return log-probabilities of ``tokens`` ``[n]`` and of the ``k`` best, and their ids: fp32, fp32 and int32."""
    table = torch.log_softmax(logits.float(), dim=-1)
    best = table.topk(min(k, logits.shape[-1]), dim=-1)
    return [table.gather(-1, tokens.long()[:, None])[:, 0], best.values, best.indices.int()]


def fetch_logprobs(logits: Tensor, tokens: Sequence[int], k: int) -> list[Array]:
    """Return ``logprob_tensors`` on the host; ``logits`` are ``[n, vocab]`` of any float dtype."""
    upload = Upload(logits.device)
    drawn = upload.add(tokens)
    upload.send()
    return fetch(logprob_tensors(logits, drawn.tensor, k))


def logprobs_in_pieces(logits: Tensor, pieces: Iterable[tuple[Tensor, Tensor]], k: int) -> list[Tensor]:
    """Return ``logprob_tensors`` of some rows, computed piece by piece.

    Args:
        logits: ``[rows, vocab]``, any float dtype; not changed.
        pieces: rows, int64 ``[n]``, and a token of each, ``[n]``; at least one piece.
        k: how many of the best tokens to report.
    """
    return _join([logprob_tensors(logits.index_select(0, rows), tokens, k) for rows, tokens in pieces])


def as_logprobs(
    tokens: Sequence[int], ks: Sequence[int], drawn: Array, values: Array, ids: Array
) -> list[TokenLogprob]:
    """Return one entry per row from fetched ``logprob_tensors``, with the best ``ks[i]`` tokens of row ``i``."""
    rows = zip(tokens, drawn.tolist(), ids.tolist(), values.tolist(), ks, strict=True)
    return [
        TokenLogprob(token, value, tuple(zip(best[:k], tops[:k], strict=True))) for token, value, best, tops, k in rows
    ]


def top_ids(logits: Tensor, k: int, with_logprobs: bool) -> list[Tensor]:
    """Return the ``k`` best ids of every row, best first, int32, and their log-probabilities if asked for, fp32."""
    k = min(k, logits.shape[-1])
    if not is_host(logits.device):
        return _top_tensors(logits, torch.topk(logits, k, dim=-1), with_logprobs)
    pieces = torch.split(logits, max(1, _HOST_CELLS // logits.shape[-1]))
    return _join([_top_tensors(piece, _host_topk(piece, k), with_logprobs) for piece in pieces])


def _top_tensors(logits: Tensor, best: tuple[Tensor, Tensor], with_logprobs: bool) -> list[Tensor]:
    values, ids = best
    if not with_logprobs:
        return [ids.int()]
    return [ids.int(), values.float() - torch.logsumexp(logits.float(), dim=-1, keepdim=True)]


def _host_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return ``torch.topk``, two to four times faster for long rows; equal logits may come in another order.

    The best ``k`` are in the ``k`` blocks with the largest maxima.
    """
    n, vocab = logits.shape
    n_blocks = vocab // _BLOCK
    if vocab < LONG_ROW or k > n_blocks:
        values, ids = torch.topk(logits, k, dim=-1)
        return values, ids
    end = n_blocks * _BLOCK
    blocks = logits[:, :end].view(n, n_blocks, _BLOCK).amax(dim=-1).topk(k, dim=-1, sorted=False).indices
    inside = blocks.sort(dim=-1).values[:, :, None] * _BLOCK + torch.arange(_BLOCK)
    candidates = torch.cat((inside.view(n, -1), torch.arange(end, vocab).expand(n, -1)), dim=-1)
    values, places = logits.gather(-1, candidates).topk(k, dim=-1)
    return values, candidates.gather(-1, places)


def _join(pieces: Sequence[list[Tensor]]) -> list[Tensor]:
    return pieces[0] if len(pieces) == 1 else [torch.cat(parts) for parts in zip(*pieces, strict=True)]
