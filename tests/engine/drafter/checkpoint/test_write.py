"""A written drafter is read again unchanged, under the names and layer ids of the public layout."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from engine.drafter.checkpoint import ids as layout_ids
from engine.drafter.checkpoint.read import read_drafter
from engine.drafter.checkpoint.tensors import DrafterCheckpoint, describe_tensors
from engine.drafter.checkpoint.write import write_drafter, write_speculators
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError, UnsupportedModelError
from tests.engine.drafter.checkpoint.drafters import DRAFTED, LAYOUTS, TARGET, eagle3, medusa, speculators_eagle3

NAMES_KEPT = ("eagle1", "eagle3", "eagle31", "nvidia_eagle3", "peagle", "dflash", "jetspec", "specforge_dspark",
              "medusa", "parallelspec_medusa", "parallelspec_eagle")  # fmt: skip


def same(one: DrafterCheckpoint, other: DrafterCheckpoint) -> bool:
    ids = [read.draft_ids is None or read.draft_ids.tolist() for read in (one, other)]
    alike = all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    return one.spec == other.spec and one.tensors.keys() == other.tensors.keys() and alike and ids[0] == ids[1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_written_drafter_is_read_again_unchanged(layout: str, tmp_path: Path) -> None:
    public = LAYOUTS[layout]()
    read = read_drafter(public.save(tmp_path / "public"), TARGET)
    write_drafter(tmp_path / "ours", read, TARGET, "our/target")
    assert same(read, read_drafter(tmp_path / "ours", TARGET))
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in (tmp_path / "ours").iterdir())  # for servers to read
    if layout in NAMES_KEPT:
        (file,) = (tmp_path / "ours").glob("*.safetensors")
        written = load_file(file)
        assert written.keys() == public.tensors.keys()
        assert all(torch.equal(tensor, written[name]) for name, tensor in public.tensors.items())


def cut(read: DrafterCheckpoint, own_head: bool = False) -> DrafterCheckpoint:
    """The drafter with a small vocabulary, and without its head unless ``own_head``."""
    spec = replace(read.spec, draft_vocab_size=DRAFTED, own_head=own_head)
    tensors = {name: tensor[:DRAFTED] if "out.weight" in name else tensor for name, tensor in read.tensors.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if name in describe_tensors(spec)}
    return replace(read, spec=spec, tensors=tensors, draft_ids=torch.arange(DRAFTED) * 8 + 1)


@pytest.mark.parametrize(
    ("layout", "own_head"),
    [(one, False) for one in ("medusa", "eagle1", "eagle3", "parallelspec_eagle", "dflash")] + [("medusa", True)],
)
def test_a_drafter_of_a_part_of_the_vocabulary_is_read_again(layout: str, own_head: bool, tmp_path: Path) -> None:
    drafter = cut(read_drafter(LAYOUTS[layout]().save(tmp_path / "public"), TARGET), own_head)
    write_drafter(tmp_path / "ours", drafter, TARGET)
    read = read_drafter(tmp_path / "ours", TARGET)
    assert same(drafter, read)
    assert read.layout == "spectra"


def test_an_eagle_3_without_a_head_is_written_for_other_engines(tmp_path: Path) -> None:
    public = speculators_eagle3()
    whole = read_drafter(public.save(tmp_path / "public"), TARGET)
    write_speculators(tmp_path / "ours", cut(whole), TARGET, "our/target", whole.tensors["head.weight"].double())
    written = load_file(tmp_path / "ours" / "model.safetensors")
    assert written.keys() == public.tensors.keys()
    assert all(torch.equal(tensor, written[name]) for name, tensor in public.tensors.items())
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    inner = ("speculators_config", "transformer_layer_config")
    for found, published in ((config, public.config), *((config[name], public.config[name]) for name in inner)):
        assert published.keys() <= found.keys()
    chosen = ("speculators_model_type", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "norm_before_residual")
    assert [config[name] for name in chosen] == [public.config[name] for name in chosen]
    read = read_drafter(tmp_path / "ours", TARGET)
    assert (same(whole, read), read.layout) == (True, "speculators eagle3")


@pytest.mark.parametrize(
    ("layout", "taps"), [("eagle3", (2, 3, 11)), ("peagle", (-1, 0, 1)), ("dflash", (1, 5, 8)), ("eagle3", (0, 4, 7))]
)
def test_written_taps_are_read_again(layout: str, taps: tuple[int, ...], tmp_path: Path) -> None:
    read = read_drafter(LAYOUTS[layout]().save(tmp_path / "public"), TARGET, taps)
    write_drafter(tmp_path / "ours", read, TARGET)
    assert read_drafter(tmp_path / "ours", TARGET).spec.taps == taps


def test_other_engines_find_the_layer_ids(tmp_path: Path) -> None:
    for layout in ("eagle3", "peagle", "dflash"):
        read = read_drafter(LAYOUTS[layout]().save(tmp_path / "public" / layout), TARGET, (1, 4, 9))
        write_drafter(tmp_path / layout, read, TARGET, "our/target")
    configs = {layout: json.loads((tmp_path / layout / "config.json").read_text()) for layout in ("eagle3", "peagle")}
    assert configs["eagle3"]["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 5, 10]
    assert configs["peagle"]["eagle_aux_hidden_state_layer_ids"] == [2, 5, 10]
    assert configs["peagle"]["speculators_config"]["verifier"]["name_or_path"] == "our/target"
    block = json.loads((tmp_path / "dflash" / "config.json").read_text())
    assert (block["block_size"], block["num_target_layers"], block["dflash_config"]["target_layer_ids"]) == (
        6, 12, [1, 4, 9],
    )  # fmt: skip


def test_rope_windows_and_shared_memory_are_written(tmp_path: Path) -> None:
    block, heads = LAYOUTS["dflash"](), medusa()
    rope = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    block.config |= rope | {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9}
    for head in range(5):  # a second block of every head, all in the memory of the first
        heads.tensors[f"{head}.2.weight"] = heads.tensors.pop(f"{head}.1.weight")
        for kind in ("weight", "bias"):
            shared = heads.tensors[f"0.0.linear.{kind}"]
            heads.tensors[f"{head}.0.linear.{kind}"] = heads.tensors[f"{head}.1.linear.{kind}"] = shared
    for name, public in (("block", block), ("heads", heads)):
        read = read_drafter(public.save(tmp_path / name), TARGET)
        assert read.spec.layers is None or dict(read.spec.layers.rope_scaling)["factor"] == 4.0
        assert read.spec.n_head_layers == (2 if name == "heads" else 0)
        write_drafter(tmp_path / f"our {name}", read, TARGET)
        assert same(read, read_drafter(tmp_path / f"our {name}", TARGET))


def test_a_drafter_without_a_layout_is_refused(tmp_path: Path) -> None:
    read = read_drafter(LAYOUTS["peagle"]().save(tmp_path / "public"), TARGET)
    tensors = {name: tensor for name, tensor in read.tensors.items() if name != "mask_state"}
    deep = replace(read.spec, method="eagle", generation=3, has_mask_state=False, mask_token_id=None, n_drafts=None)
    with pytest.raises(ConfigError, match="the drafter has 2 layers; EAGLE-3's layout allows only one"):
        write_drafter(tmp_path / "deep", replace(read, spec=deep, tensors=tensors), TARGET)
    with pytest.raises(UnsupportedModelError, match="lacks tensors 'mask_state'"):
        write_drafter(tmp_path / "lacking", replace(read, tensors=tensors), TARGET)
    assert not (tmp_path / "deep").exists()


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
        assert layout_ids.taps_of_input_ids(ids, n_layers) == expected
    evenly = {(36, 5): (1, 9, 17, 25, 33), (24, 5): (1, 6, 11, 16, 21), (32, 5): (1, 8, 15, 22, 29), (36, 1): (18,)}
    for (n_layers, n_draft_layers), expected in evenly.items():  # DFlash without ids
        assert layout_ids.dflash_taps(n_layers, n_draft_layers) == expected


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(4, 60))
def test_written_ids_are_read_again(chosen: list[int], n_layers: int) -> None:
    assert layout_ids.taps_of_input_ids(layout_ids.input_ids_of_taps(chosen), n_layers) == tuple(chosen)


@given(st.sets(st.integers(0, 96), min_size=1, max_size=96), st.booleans(), st.booleans())
def test_written_tables_of_draft_ids_are_read_again(chosen: set[int], offsets: bool, drafted: bool) -> None:
    ids = torch.tensor(sorted(chosen))
    spec = replace(BASE, draft_vocab_size=len(ids))
    tables = layout_ids.write_draft_ids(ids, 97)
    d2t, t2d = tables["d2t"] if offsets or not drafted else None, tables["t2d"] if drafted else None
    read = layout_ids.read_draft_ids(Path("x"), spec, d2t, t2d)
    assert read is not None
    assert read.tolist() == sorted(chosen)


def test_an_untrained_table_means_the_first_ids(tmp_path: Path) -> None:
    public = eagle3()
    public.tensors["d2t"].zero_()
    public.tensors["t2d"].fill_(True)
    read = read_drafter(public.save(tmp_path), TARGET)
    assert read.draft_ids is not None
    assert read.draft_ids.tolist() == list(range(11))
