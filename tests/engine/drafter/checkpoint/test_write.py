"""A written drafter is read again unchanged, under the names of the public layout."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.drafter.checkpoint.checkpoint import DrafterCheckpoint
from engine.drafter.checkpoint.read import read_drafter
from engine.drafter.checkpoint.write import write_drafter
from engine.errors import ConfigError, UnsupportedModelError
from tests.support.drafters import LAYOUTS, TARGET, medusa

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
    with pytest.raises(ConfigError, match="EAGLE-3's layout has one layer, this drafter 2"):
        write_drafter(tmp_path / "deep", replace(read, spec=deep, tensors=tensors), TARGET)
    with pytest.raises(UnsupportedModelError, match="lacks tensors 'mask_state'"):
        write_drafter(tmp_path / "lacking", replace(read, tensors=tensors), TARGET)
    assert not (tmp_path / "deep").exists()
