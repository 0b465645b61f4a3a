"""Int8 weights on a CPU: the arithmetic of bitsandbytes row by row, and Hugging Face's own int8 models."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from engine.model.matrices.linears import Int8Linear, quantize
from engine.model.matrices.quantization import THRESHOLD, Quantization, bitsandbytes
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from tests.support.engines import complete_all, make_engine
from tests.support.tiny_models import random_prompts, reference_tokens, saved_model

N_TOKENS = 12


@torch.no_grad()
def their_text(model: Any, prompt: list[int]) -> list[int]:
    """Greedy output of Hugging Face's model, token by token: all its batches have one row."""
    text, cache = [*prompt], None
    for i in range(len(prompt) + N_TOKENS - 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it rounds activations to float16
            out = model(torch.tensor([[text[i]]]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        if i >= len(prompt) - 1:
            text.append(int(out.logits[0, -1].argmax()))
            if text[-1] == 2:
                break
    return text[len(prompt) :]


@torch.inference_mode()
@pytest.mark.filterwarnings("ignore:MatMul8bitLt")
@pytest.mark.parametrize(
    ("dtype", "threshold"), [(torch.float32, 6.0), (torch.bfloat16, 0.0), (torch.float16, 6.0)], ids=str
)
def test_every_row_equals_that_of_bitsandbytes_in_a_batch_of_one(dtype: torch.dtype, threshold: float) -> None:
    torch.manual_seed(3)
    weight, bias, package = torch.randn(96, 64), torch.randn(96), bitsandbytes()
    theirs = package.nn.Linear8bitLt(64, 96, has_fp16_weights=False, threshold=threshold)
    theirs.weight = package.nn.Int8Params(weight.clone(), requires_grad=False, has_fp16_weights=False)
    theirs.bias.data = bias
    theirs.to("cpu").eval()
    parameter = torch.nn.Parameter(bias, requires_grad=False)
    ours = Int8Linear(*quantize(weight, Quantization("int8", THRESHOLD), torch.device("cpu")), parameter, threshold)
    rows = torch.randn(6, 64)
    rows[2, 3], rows[4, 9], rows[4, 10] = 20.0, -8.0, 6.0  # outliers
    rows = rows.to(dtype)
    expected = torch.cat([theirs(row.unsqueeze(0)) for row in rows])
    assert ours(rows).dtype is dtype
    assert torch.allclose(ours(rows), expected, rtol=torch.finfo(dtype).eps * 4, atol=torch.finfo(dtype).eps * 100)
    loud = rows.clone()
    loud[5, 7] = 40.0
    assert torch.equal(ours(rows)[:5], ours(loud)[:5]), "outliers of another row change nothing"


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_outputs_are_those_of_hugging_faces_int8_model_for_every_method_and_split(family: str, tmp_path: Path) -> None:
    texts = random_prompts(2)
    model: Any = AutoModelForCausalLM.from_pretrained(
        saved_model(family),
        quantization_config=BitsAndBytesConfig(load_in_8bit=True),
        device_map={"": "cpu"},
        dtype=torch.float32,
    )
    model.save_pretrained(tmp_path)
    expected = [their_text(model, text) for text in texts]
    plain = [reference_tokens(family, tuple(text), len(answer)) for text, answer in zip(texts, expected, strict=True)]
    assert expected != plain
    for path, stages, name, method in (
        (saved_model(family), 1, "int8", "autoregressive"),
        (saved_model(family), 3, "int8", "lookahead"),
        (tmp_path, 2, None, "pld"),
    ):
        options = TargetOptions(str(path), stages=stages, kv_bytes=1 << 20, block_size=16, quantization=name)
        jobs = [Request(text, SamplingParams(max_tokens=N_TOKENS, stop_ids=(2,)), method) for text in texts]
        done = complete_all(make_engine(LocalTarget.load(options, path)), jobs)
        assert [one.token_ids for one in done] == expected
