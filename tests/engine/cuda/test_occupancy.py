"""Launch sizes by what a card holds."""

from __future__ import annotations

import pytest
import torch

from engine.cuda import occupancy
from engine.cuda.occupancy import HOPPER, Card, count_attention_programs, count_pipeline_stages

CPU = torch.device("cpu")
HEAD = 128 * 2  # bytes of a head in bf16


@pytest.mark.parametrize(("kib", "stages"), [(227, 5), (163, 5), (99, 2), (64, 1)])
def test_a_pipeline_has_as_many_stages_as_shared_memory_holds(
    kib: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(occupancy, "get_card", lambda device: Card(100, kib << 10))
    assert count_pipeline_stages(CPU, 64 * HEAD, 64 * HEAD) == stages


def test_the_programs_of_all_key_heads_run_at_once() -> None:
    assert [count_attention_programs(CPU, n, 128) for n in (1, 4, 8, 200)] == [HOPPER.multiprocessors, 33, 16, 1]
    assert count_attention_programs(CPU, 8, 64) == 33
