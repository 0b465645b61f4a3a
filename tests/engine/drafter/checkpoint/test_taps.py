"""Layer ids of every layout are read as outputs of layers, tables of draft ids as ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.drafter.checkpoint import taps, vocabulary
from engine.drafter.checkpoint.read import read_drafter
from engine.drafter.spec import DrafterSpec
from tests.support.drafters import TARGET, eagle3

BASE = DrafterSpec("eagle", 3, 32, 97, 97, (1, 5, 8), None)
PUBLISHED = {  # ids in public files, by layers of their target: what they name
    ((1, 46, 90), 94): (1, 46, 90),  # Qwen3-235B, SpecForge: outputs
    ((1, 29, 57), 61): (1, 29, 57),  # DeepSeek-V3, SpecForge
    ((24, 30, 36), 36): (23, 29, 35),  # gpt-oss-120b, NVIDIA: the last layer's output is the input of the head
    ((2, 18, 33), 36): (1, 17, 32),  # Qwen3-8B, speculators
    ((), 32): (1, 15, 28),
    (None, 32): (1, 15, 28),  # Llama-3.1-8B, SafeAILab: inputs of 2, 16 and 29
}


def test_published_ids_are_outputs_of_layers() -> None:
    for (ids, n_layers), expected in PUBLISHED.items():
        assert taps.of_inputs(ids, n_layers) == expected
    evenly = {(36, 5): (1, 9, 17, 25, 33), (24, 5): (1, 6, 11, 16, 21), (32, 5): (1, 8, 15, 22, 29), (36, 1): (18,)}
    for (n_layers, n_draft_layers), expected in evenly.items():  # DFlash without ids
        assert taps.of_dflash(None, n_layers, n_draft_layers) == expected


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(4, 60))
def test_written_ids_are_read_again(chosen: list[int], n_layers: int) -> None:
    assert taps.of_inputs(taps.as_inputs(chosen), n_layers) == tuple(chosen)
    assert taps.of_dflash(chosen, n_layers, 3) == tuple(chosen)


@given(st.sets(st.integers(0, 96), min_size=1, max_size=96), st.booleans(), st.booleans())
def test_written_tables_of_draft_ids_are_read_again(chosen: set[int], offsets: bool, drafted: bool) -> None:
    ids = torch.tensor(sorted(chosen))
    spec = replace(BASE, draft_vocab_size=len(ids))
    d2t = vocabulary.offset_table(ids) if offsets or not drafted else None
    t2d = vocabulary.membership_table(ids, 97) if drafted else None
    read = vocabulary.draft_ids(Path("x"), spec, d2t, t2d)
    assert read is not None
    assert read.tolist() == sorted(chosen)


def test_an_untrained_table_means_the_first_ids(tmp_path: Path) -> None:
    public = eagle3()
    public.tensors["d2t"].zero_()
    public.tensors["t2d"].fill_(True)
    read = read_drafter(public.save(tmp_path), TARGET)
    assert read.draft_ids is not None
    assert read.draft_ids.tolist() == list(range(11))
