"""Norm, activation and embedding: Hugging Face's modules in fp32 and fp16, and every row for itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm, Gemma3TextScaledWordEmbedding
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from engine.cuda.kernels.activation import gated
from engine.cuda.kernels.embed import embed
from engine.cuda.kernels.norm import rms_norm
from tests.engine.cuda.kernels.rows import assert_rows_alike, poisoned

DTYPES = [torch.float32, torch.float16]
STEPS = {torch.float32: 4, torch.float16: 1}  # numbers of a dtype that may lie between: a sum's order, exp's last bits


def assert_near(found: Tensor, expected: Tensor) -> None:
    """At most some steps of their dtype apart, and in fp16 hardly ever that."""
    resolution = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found, expected, rtol=STEPS[found.dtype] * resolution, atol=resolution * 2**-10)
    if found.dtype == torch.float16:  # rounded where the module rounds, or many would differ
        assert float((found != expected).float().mean()) < 0.02


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma3RMSNorm])
@pytest.mark.parametrize("width", [100, 1024])
@torch.inference_mode()
def test_norm(width: int, kind: type[nn.Module], dtype: torch.dtype) -> None:
    norm = kind(width, eps=1e-5).to(dtype)
    nn.init.normal_(norm.weight)
    x, stream = (torch.randn(4, width) * 3).to(dtype), torch.randn(4, width).to(dtype)
    offset = 1.0 if kind is Gemma3RMSNorm else 0.0
    out = poisoned(4, width, dtype=dtype)
    rms_norm(x, norm.weight, out, 1e-5, offset=offset)
    assert_near(out, norm(x))
    expected = stream + x
    rms_norm(x, norm.weight, out, 1e-5, residual=stream, offset=offset)
    assert torch.equal(stream, expected)
    assert_near(out, norm(expected))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kind", "name"), [("silu", "silu"), ("gelu_tanh", "gelu_pytorch_tanh")])
def test_gated_activation(kind: str, name: str, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(3, 2 * 1100) * 4).to(dtype)
    gate_up[0, :4] = torch.tensor([-200.0, 0.0, 200.0, -3e3])
    out = poisoned(3, 1100, dtype=dtype)
    gated(gate_up, out, kind)
    expected = ACT2FN[name](gate_up[:, :1100]) * gate_up[:, 1100:]
    if dtype == torch.float32:
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)  # torch's own tanh cancels below -4
    else:
        torch.testing.assert_close(out, expected, rtol=2**-10, atol=2**-10)
        assert float((out != expected).float().mean()) < 0.1  # torch rounds some of its own otherwise


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="kind is 'relu'; it must be one of silu, gelu_tanh"):
        gated(torch.zeros(1, 4), torch.zeros(1, 2), "relu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_embedding(dtype: torch.dtype) -> None:
    table = Gemma3TextScaledWordEmbedding(50, 100, 0, embed_scale=100**0.5 + 0.1).to(dtype)
    tokens, out = torch.tensor([3, 0, 49, 3], dtype=torch.int32), poisoned(4, 100, dtype=dtype)
    embed(tokens, table.weight, out, 100**0.5 + 0.1)
    assert torch.equal(out, table(tokens))
    embed(tokens, table.weight, out)
    assert torch.equal(out, table.weight[tokens])


def test_a_row_does_not_depend_on_others() -> None:
    x, weight, stream = torch.randn(130, 100), torch.randn(100), torch.randn(130, 100)

    def norms(rows: Tensor) -> Tensor:
        out, sums = poisoned(len(rows), 100), stream[rows]
        rms_norm(x[rows], weight, out, 1e-6, residual=sums)
        return torch.cat((out, sums), -1)

    def activations(rows: Tensor) -> Tensor:
        out = poisoned(len(rows), 50)
        gated(x[rows], out, "silu")
        return out

    assert_rows_alike(norms)
    assert_rows_alike(activations)
