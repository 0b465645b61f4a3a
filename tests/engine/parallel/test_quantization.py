"""One-byte weights of tensor-parallel ranks write the text of one rank, made while they load or stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import device
from engine.loop import Completion
from engine.model.matrices.quantization import bitsandbytes
from engine.request import Request
from engine.sampling.params import SamplingParams
from tests.support.engines import complete_all, make_engine
from tests.support.fp8_checkpoints import fp8_checkpoint, int8_checkpoint
from tests.support.quantized_checkpoints import quantized_checkpoint
from tests.support.rank_threads import threaded_target
from tests.support.tiny_models import VOCAB, random_prompts, saved_model

bitsandbytes()  # its import starts a shell, which a test without a marker may not


def complete(path: Path, quantization: str | None, ranks: int = 1, stages: int = 1) -> list[Completion]:
    """Texts with the log-probabilities of all tokens."""
    engine = make_engine(threaded_target(path, ranks, stages, quantization=quantization))
    params = SamplingParams(max_tokens=10, logprobs=VOCAB)
    return complete_all(engine, [Request(text, params, "pld") for text in random_prompts(2)])


def logits_of(done: list[Completion]) -> list[Any]:
    return [sorted(entry.top) for one in done for entry in one.logprobs or ()]


CASES: list[Any] = [
    ("llama", None, lambda family, folder: fp8_checkpoint(family, folder, "channel"), (2, 2)),
    ("gemma3", None, lambda family, folder: fp8_checkpoint(family, folder, "tensor"), (2, 1)),
    ("qwen3", "fp8", None, (4, 1)),
    ("qwen2", None, int8_checkpoint, (2, 1)),
    ("mistral", "int8", None, (4, 1)),
    ("llama", "int8", None, (2, 2)),
]
IDS = ["stored fp8, channel", "stored fp8, tensor", "made fp8", "stored int8", "made int8", "made int8, stages"]


@pytest.mark.parametrize(("family", "quantization", "make", "shape"), CASES, ids=IDS)
def test_the_text_is_that_of_one_rank(
    family: str,
    quantization: str | None,
    make: Callable[[str, Path], Path] | None,
    shape: tuple[int, int],
    tmp_path: Path,
) -> None:
    path = saved_model(family) if make is None else make(family, tmp_path / "stored")
    alone, done = complete(path, quantization), complete(path, quantization, *shape)
    assert [one.token_ids for one in done] == [one.token_ids for one in alone]
    # Bits of int8 may differ: its sums are exact but for outliers, whose products torch sums in another order for
    # another number of outputs, as it does those of the fp32 head.
    for found, expected in zip(logits_of(done), logits_of(alone), strict=True):
        assert found == [(token, pytest.approx(logprob, abs=1e-4)) for token, logprob in expected]


@pytest.mark.parametrize("keeps_numbers", [False, True])
@pytest.mark.parametrize(
    ("family", "form", "shape"),
    [("llama", "gptq asymmetric", (4, 1)), ("qwen3_moe", "fp8 block inverse", (2, 2))],  # ranks cut groups; experts
)
def test_the_text_of_groups_is_that_of_one_rank(
    family: str,
    form: str,
    shape: tuple[int, int],
    keeps_numbers: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if keeps_numbers:  # as on a GPU
        monkeypatch.setattr(device, "is_host", lambda _: False)
    path = quantized_checkpoint(family, tmp_path / "stored", form)
    alone, done = complete(path, None), complete(path, None, *shape)
    assert [one.token_ids for one in done] == [one.token_ids for one in alone]
    for found, expected in zip(logits_of(done), logits_of(alone), strict=True):
        assert found == [(token, pytest.approx(logprob, abs=1e-4)) for token, logprob in expected]
