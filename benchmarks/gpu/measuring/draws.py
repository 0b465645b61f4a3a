"""Tokens and best ids by the kernels, against a CPU's, and the times of draws."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.measuring.clock import measure_throughput
from benchmarks.gpu.measuring.models import LLAMA_8B
from benchmarks.gpu.setting import Row, Setting
from engine.cuda.kernels.best import best_ids
from engine.cuda.kernels.draw import draw
from engine.cuda.kernels.truncation import Truncation
from engine.sampling.draw import draw_tokens
from engine.sampling.noise import gumbel_keys
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process

ROWS, VOCAB_TINY, N_BEST = (1, 64), 300, 32
TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 100, 0.9, 0.01
PARAMS = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=TEMPERATURE),
    "top-k, top-p, min-p": SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P, min_p=MIN_P),
}


def check_draws(setting: Setting) -> Iterator[Row]:
    """Yield a row for each way of drawing and number of rows: rows unlike a CPU's, and the time.

    Logits are rounded to bf16, so that many are equal.
    """
    for n in (1, 4) if setting.is_tiny else ROWS:
        shape = n, VOCAB_TINY if setting.is_tiny else LLAMA_8B.vocab
        logits = torch.from_numpy(np.random.default_rng(0).normal(0, 3, shape).astype(np.float32))
        logits = logits.to(torch.bfloat16).float()
        for name, params in PARAMS.items():
            yield _check_draw(setting, name, logits, params)
        yield _check_best(setting, logits)


def _check_draw(setting: Setting, name: str, host: Tensor, params: SamplingParams) -> Row:
    n, device, truncation = len(host), setting.device, None
    keys = [(7, 0, row) for row in range(n)]
    expected = draw_tokens(process(host, [params] * n, [None] * n), [None] * n if params.is_greedy else keys)
    logits, noise = host.to(device), torch.from_numpy(gumbel_keys(keys)).to(device)
    tokens, temperatures = logits.new_full((n,), -1, dtype=torch.int32), logits.new_full((n,), params.temperature)
    if params.top_k:
        rules = (TOP_K, torch.int32), (TOP_P, torch.float64), (math.log(MIN_P), torch.float64)
        truncation = Truncation(*(torch.full((n,), rule, dtype=dtype, device=device) for rule, dtype in rules))
    seconds = measure_throughput(setting, lambda: draw(logits, temperatures, noise, tokens, truncation=truncation), 10)
    unlike = sum(found != other for found, other in zip(tokens.tolist(), expected, strict=True))
    return {"draw": name, "rows": n, "us": seconds * 1e6, "unlike a CPU's": unlike, "ok": not unlike}


def _check_best(setting: Setting, host: Tensor) -> Row:
    logits, n = host.to(setting.device), len(host)
    ids, asked = logits.new_full((n, N_BEST), -1, dtype=torch.int32), logits.new_zeros(n, dtype=torch.int32)
    found = logits.new_empty(n, 1 + N_BEST)
    seconds = measure_throughput(
        setting, lambda: best_ids(logits, N_BEST, asked, asked, ids, found[:, 1:], found[:, 0]), 10
    )
    expected, order = host.double().log_softmax(-1), host.argsort(dim=-1, descending=True, stable=True)[:, :N_BEST]
    unlike = int((ids.cpu() != order).any(-1).sum())
    error = float((found[:, 1:].cpu() - expected.gather(-1, order)).abs().max())
    ok = not unlike and error < 1e-4
    return {"draw": f"{N_BEST} best ids", "rows": n, "us": seconds * 1e6, "unlike a CPU's": unlike, "ok": ok}
