"""Draws by our kernels against a CPU's, as rows of a table; imports Triton's kernels, as ``kernel_cases`` does."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.measuring.geometry import LLAMA_8B
from benchmarks.gpu.measuring.rows import Row
from benchmarks.gpu.setting import Setting
from engine.cuda.kernels.best import best_ids
from engine.cuda.kernels.draw import draw
from engine.cuda.kernels.truncation import Truncation
from engine.sampling.draw import draw_tokens
from engine.sampling.noise import gumbel_keys
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process

ROWS, ROWS_TINY, VOCAB_TINY = 64, 4, 300
N_BEST = 32
PARAMS = {
    "greedy": SamplingParams(),
    "temperature 0.8": SamplingParams(temperature=0.8),
    "top-k, top-p, min-p": SamplingParams(temperature=0.8, top_k=100, top_p=0.9, min_p=0.01),
}


def rows(setting: Setting) -> list[Row]:
    """Of logits that were rounded to bf16, so that many are equal."""
    shape = (ROWS_TINY, VOCAB_TINY) if setting.tiny else (ROWS, LLAMA_8B.vocab)
    numbers = np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)
    host = torch.from_numpy(numbers).to(torch.bfloat16).float()
    found = [_drawn(setting, name, host, params) for name, params in PARAMS.items()]
    ids = torch.full((len(host), N_BEST), -1, dtype=torch.int32, device=setting.device)
    told = torch.empty(len(host), N_BEST + 1, device=setting.device)
    asked = torch.zeros(len(host), dtype=torch.int32, device=setting.device)
    best_ids(host.to(setting.device), N_BEST, asked, asked, ids, told[:, 1:], told[:, 0])
    order = torch.sort(host, dim=-1, descending=True, stable=True).indices[:, :N_BEST]
    other = int((ids.cpu() != order).any(-1).sum())
    return [*found, {"draw": f"{N_BEST} best ids", "rows": len(host), "other": other}]


def _drawn(setting: Setting, name: str, host: Tensor, params: SamplingParams) -> Row:
    """One way of drawing: rows unlike a CPU's, and, of some rows, those unlike themselves alone."""
    n = len(host)
    keys = [(7, 0, row) for row in range(n)]
    wanted = draw_tokens(process(host, [params] * n, [None] * n), [None] * n if params.is_greedy else keys)
    logits, halves = host.to(setting.device), torch.from_numpy(gumbel_keys(keys)).to(setting.device)

    def drawn(first: int, last: int) -> list[int]:
        m = last - first
        tokens = torch.full((m,), -1, dtype=torch.int32, device=setting.device)
        heat = torch.full((m,), params.temperature, device=setting.device)
        its_keys = halves[:, first:last].contiguous()
        draw(logits[first:last], heat, its_keys, tokens, truncation=_truncation(params, m, setting.device))
        return [int(token) for token in tokens.tolist()]

    together = drawn(0, n)
    unequal = sum(drawn(row, row + 1)[0] != together[row] for row in range(0, n, max(1, n // 4)))
    other = sum(one != another for one, another in zip(together, wanted, strict=True))
    return {"draw": name, "rows": n, "other": other, "unequal": unequal}


def _truncation(params: SamplingParams, n: int, device: torch.device) -> Truncation | None:
    if not params.top_k:
        return None
    return Truncation(
        torch.full((n,), params.top_k, dtype=torch.int32, device=device),
        torch.full((n,), params.top_p, dtype=torch.float64, device=device),
        torch.full((n,), math.log(params.min_p), dtype=torch.float64, device=device),
    )
