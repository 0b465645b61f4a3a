"""The drafting model is in memory once, and is loaded once, whatever comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.protocol import Outcome
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target.options import TargetOptions
from engine.tree import EMPTY_TREE
from speculators import registry
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.drafter import Drafter
from speculators.draft_model.speculator import DraftModel
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions

METHODS = ["auto", "draft-model", "pld+draft-model"]


def pool_of(checkpoint: Path) -> SpeculatorPool:
    return SpeculatorPool(SpeculatorOptions(draft_model=DraftModelConfig(str(checkpoint))))


@pytest.mark.parametrize("methods", [METHODS, METHODS[::-1]], ids=["auto first", "auto last"])
def test_all_methods_draft_with_one_model(
    methods: list[str], tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[DraftModel] = []

    def counted(config: DraftModelConfig) -> DraftModel:
        made.append(DraftModel(config))
        return made[-1]

    monkeypatch.setattr(registry, "DraftModel", counted)
    pool = pool_of(tiny_checkpoint)
    for method in methods:
        pool.needs(method)
    assert len(made) == 1


def test_a_failed_load_is_not_repeated(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[TargetOptions] = []

    def fails(options: TargetOptions) -> Drafter:
        loads.append(options)
        raise MemoryError("no room for weights")

    monkeypatch.setattr(Drafter, "load", fails)
    pool = pool_of(tiny_checkpoint)
    for i, method in enumerate(2 * METHODS):
        pool.begin(i, Request([1, 2, 3], SamplingParams(), method), 360)
        drafts = pool.advance([(i, Outcome([5], EMPTY_TREE))], {i: 8})
        assert set(drafts) == {i}, "the request goes on"
    assert len(loads) == 1
