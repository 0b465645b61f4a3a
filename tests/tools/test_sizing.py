"""The sizing table: its figures follow from shapes that are published."""

from __future__ import annotations

import pytest
import torch

from app.planning.sizes import ModelSizes
from engine.model.partition import GIB
from tools.shapes import SHAPES
from tools.sizing import HEADINGS, Hardware, main, row

H100 = Hardware(gpu=80 * GIB, usable=0.9, room=0.2, read=1.5e9, rows=20_000)


def cells(name: str, quantization: str | None = None, hardware: Hardware = H100) -> dict[str, str]:
    return dict(zip(HEADINGS, row(name, quantization, hardware), strict=True))


def test_a_70b_has_the_published_sizes() -> None:
    assert ModelSizes.of(SHAPES["Llama 3.3 70B"](), torch.bfloat16).kv_token_bytes == 320 * 1024
    found = cells("Llama 3.3 70B")
    assert found["GPUs a replica"] == "4"
    assert found["a row between stages, KiB"] == "16"
    held = float(found["KV cache of a replica, GiB (tokens)"].split()[0])
    # The first of four stages has least room for a token: 21 layers, the embedding, and 2,048 rows of fp32 states.
    layer, embedding = 2 * 0.8557e9, 2 * 128_256 * 8192
    step = 2048 * 4 * (4 * 8192 + 2 * (64 + 16) * 128 + 3 * 28_672)
    assert held == pytest.approx((72 * GIB - 21 * layer - embedding - step) / 21 * 80 / GIB, abs=1)


def test_larger_gpus_and_int8_need_fewer_of_them() -> None:
    h200 = Hardware(141 * GIB, 0.9, 0.2, 1.5e9, 20_000)
    counts = [
        cells("Llama 3.3 70B"),
        cells("Llama 3.3 70B", "int8"),
        cells("Llama 3.3 70B", None, h200),
        cells("Llama 3.3 70B", "int8", h200),
    ]
    assert [int(one["GPUs a replica"]) for one in counts] == [4, 2, 2, 1]
    assert counts[-1]["a link, Gbit/s"] == "none"


def test_the_table_names_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    told = capsys.readouterr().out
    assert all(name in told for name in SHAPES)
