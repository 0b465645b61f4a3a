"""Do the kernels compute what fp32 and fp64 say, and each row for itself?

One layer of each family, in the sizes of 8B, runs the server's self-test: attention against fp64, the layer against
Hugging Face's in fp32, and the bits of rows in steps of 1 to 512 rows and in a tree. Products of 8B and 70B are
compared with fp64 and between row tiles, drawn tokens and best ids with a CPU's. Four minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from transformers import Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

from benchmarks.gpu.measuring.clock import measure_throughput
from benchmarks.gpu.measuring.models import LLAMA_8B, LLAMA_70B, shrink
from benchmarks.gpu.measuring.products import check_products
from benchmarks.gpu.setting import GpuSetting, MeasurementPart, Row
from engine.cuda import self_test
from engine.cuda.kernels.best import best_ids
from engine.cuda.kernels.draw import draw
from engine.cuda.kernels.truncation import Truncation
from engine.model.build import random_model
from engine.sampling.draw import draw_tokens
from engine.sampling.noise import gumbel_keys
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process

FAMILIES: dict[str, Callable[..., Any]] = {
    "Llama": LlamaConfig,
    "Qwen 2: biases": Qwen2Config,
    "Qwen 3: norms of heads": Qwen3Config,
    "Gemma 3: offset of norms, GELU, window": partial(Gemma3TextConfig, layer_types=["sliding_attention"]),
}
TINY_TEST = {"ROW_TILES": (8, 20), "ROWS": 20, "SPLIT": 16}
DRAWN_ROWS, VOCAB_TINY, N_BEST = (1, 64), 300, 32
TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 100, 0.9, 0.01
PARAMS = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=TEMPERATURE),
    "top-k, top-p, min-p": SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P, min_p=MIN_P),
}


def check_layers(setting: GpuSetting, families: Mapping[str, Callable[..., Any]] = FAMILIES) -> Iterator[Row]:
    """Yield the self-test's verdict on one layer of each family; ``exact`` must not need one row tile for all steps."""
    sizes = shrink(setting, replace(LLAMA_8B, n_layers=1, vocab=300)).config_fields()
    for name, make_config in families.items():
        layer = random_model(make_config(**sizes), setting.dtype, setting.device, None)
        with mock.patch.dict(vars(self_test), TINY_TEST if setting.is_tiny else {}):
            verdict = self_test.self_test([layer], is_exact=True)
        fault, tile = verdict.kernel_fault or verdict.order_fault, verdict.row_tile
        ok = not fault and tile is None
        yield {"layer": name, "fault": fault or None, "only row tile": tile, "seconds": verdict.seconds, "ok": ok}


def check_draws(setting: GpuSetting) -> Iterator[Row]:
    """Yield a row for each way of drawing and number of rows: rows unlike a CPU's, and the time.

    Logits are rounded to bf16, so that many are equal.
    """
    for n in (1, 4) if setting.is_tiny else DRAWN_ROWS:
        shape = n, VOCAB_TINY if setting.is_tiny else LLAMA_8B.vocab
        logits = torch.from_numpy(np.random.default_rng(0).normal(0, 3, shape).astype(np.float32))
        logits = logits.to(torch.bfloat16).float()
        for name, params in PARAMS.items():
            yield _check_draw(setting, name, logits, params)
        yield _check_best(setting, logits)


def _check_draw(setting: GpuSetting, name: str, host: Tensor, params: SamplingParams) -> Row:
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


def _check_best(setting: GpuSetting, host: Tensor) -> Row:
    logits, n = host.to(setting.device), len(host)
    ids, asked = logits.new_full((n, N_BEST), -1, dtype=torch.int32), logits.new_zeros(n, dtype=torch.int32)
    found = logits.new_empty(n, 1 + N_BEST)
    given = logits, N_BEST, asked, asked, ids, found[:, 1:], found[:, 0]
    seconds = measure_throughput(setting, lambda: best_ids(*given), 10)
    expected, order = host.double().log_softmax(-1), host.argsort(dim=-1, descending=True, stable=True)[:, :N_BEST]
    unlike = int((ids.cpu() != order).any(-1).sum())
    error = float((found[:, 1:].cpu() - expected.gather(-1, order)).abs().max())
    ok = not unlike and error < 1e-4
    return {"draw": f"{N_BEST} best ids", "rows": n, "us": seconds * 1e6, "unlike a CPU's": unlike, "ok": ok}


PARTS = (
    MeasurementPart("layers", 1, "Is a layer of each family Hugging Face's, and are rows equal?", check_layers),
    MeasurementPart("8B", 1, "Are products of 8B what fp64 says, in every row tile?", check_products),
    MeasurementPart("70B", 1.5, "Are products of 70B?", partial(check_products, geometry=LLAMA_70B)),
    MeasurementPart("draws", 0.5, "Are tokens and best ids a CPU's?", check_draws),
)
