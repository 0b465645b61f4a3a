"""What is written is read again as it was, under the names that the public layout has."""

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
from tests.support.drafter_tensors import TARGET
from tests.support.drafters import LAYOUTS, medusa

NAMES_KEPT = ("eagle1", "eagle3", "eagle31", "nvidia_eagle3", "peagle", "dflash", "jetspec", "specforge_dspark",
              "medusa", "parallelspec_medusa", "parallelspec_eagle")  # fmt: skip


def same(one: DrafterCheckpoint, other: DrafterCheckpoint) -> bool:
    ids = [read.draft_ids is None or read.draft_ids.tolist() for read in (one, other)]
    alike = all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    return one.spec == other.spec and one.tensors.keys() == other.tensors.keys() and alike and ids[0] == ids[1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_written_is_read_again(layout: str, tmp_path: Path) -> None:
    read = read_drafter(LAYOUTS[layout](TARGET).save(tmp_path / "public"), TARGET)
    write_drafter(tmp_path / "ours", read, TARGET, "our/target")
    assert same(read, read_drafter(tmp_path / "ours", TARGET))
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in (tmp_path / "ours").iterdir())  # for servers to read


@pytest.mark.parametrize("layout", NAMES_KEPT)
def test_tensors_are_written_under_public_names(layout: str, tmp_path: Path) -> None:
    public = LAYOUTS[layout](TARGET)
    write_drafter(tmp_path / "ours", read_drafter(public.save(tmp_path / "public"), TARGET), TARGET)
    (file,) = (tmp_path / "ours").glob("*.safetensors")
    written = load_file(file)
    assert written.keys() == public.tensors.keys()
    assert all(torch.equal(tensor, written[name]) for name, tensor in public.tensors.items())


@pytest.mark.parametrize("taps", [(0, 4, 7), (1, 5, 8), (2, 3, 11), (-1, 0, 1)])
@pytest.mark.parametrize("layout", ["eagle3", "peagle", "dflash"])
def test_taps_are_written_beyond_doubt(layout: str, taps: tuple[int, ...], tmp_path: Path) -> None:
    read = read_drafter(LAYOUTS[layout](TARGET).save(tmp_path / "public"), TARGET, taps)
    write_drafter(tmp_path / "ours", read, TARGET)
    assert read_drafter(tmp_path / "ours", TARGET).spec.taps == taps


def test_other_engines_find_the_ids_they_look_for(tmp_path: Path) -> None:
    for layout in ("eagle3", "peagle", "dflash"):
        read = read_drafter(LAYOUTS[layout](TARGET).save(tmp_path / "public" / layout), TARGET, (1, 4, 9))
        write_drafter(tmp_path / layout, read, TARGET, "our/target")
    configs = {layout: json.loads((tmp_path / layout / "config.json").read_text()) for layout in ("eagle3", "peagle")}
    assert configs["eagle3"]["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 5, 10]
    assert configs["peagle"]["eagle_aux_hidden_state_layer_ids"] == [2, 5, 10]
    assert configs["peagle"]["speculators_config"]["verifier"]["name_or_path"] == "our/target"
    block = json.loads((tmp_path / "dflash" / "config.json").read_text())
    assert (block["block_size"], block["num_target_layers"], block["dflash_config"]["target_layer_ids"]) == (
        6, 12, [1, 4, 9],
    )  # fmt: skip


def test_rope_and_window_survive(tmp_path: Path) -> None:
    public = LAYOUTS["dflash"](TARGET)
    public.config |= {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 9,
    }
    read = read_drafter(public.save(tmp_path / "public"), TARGET)
    write_drafter(tmp_path / "ours", read, TARGET)
    assert same(read, read_drafter(tmp_path / "ours", TARGET))
    assert read.spec.layers is not None
    assert dict(read.spec.layers.rope_scaling)["factor"] == 4.0


def test_blocks_that_share_their_memory_are_written_apart(tmp_path: Path) -> None:
    public = medusa()
    first = {name: tensor for name, tensor in public.tensors.items() if name.startswith("0.0.")}
    for head in range(5):
        public.tensors[f"{head}.2.weight"] = public.tensors.pop(f"{head}.1.weight")
        for name, tensor in first.items():
            kind = name.rpartition(".")[2]
            public.tensors[f"{head}.0.linear.{kind}"] = public.tensors[f"{head}.1.linear.{kind}"] = tensor
    read = read_drafter(public.save(tmp_path / "public"), TARGET)
    assert read.spec.n_head_layers == 2
    write_drafter(tmp_path / "ours", read, TARGET)
    assert same(read, read_drafter(tmp_path / "ours", TARGET))


def test_what_no_layout_can_say_is_refused(tmp_path: Path) -> None:
    read = read_drafter(LAYOUTS["peagle"](TARGET).save(tmp_path / "public"), TARGET)
    tensors = {name: tensor for name, tensor in read.tensors.items() if name != "mask_state"}
    deep = replace(read.spec, method="eagle", generation=3, has_mask_state=False, mask_token_id=None, n_drafts=None)
    with pytest.raises(ConfigError, match="EAGLE-3's layout has one layer, this drafter 2"):
        write_drafter(tmp_path / "deep", replace(read, spec=deep, tensors=tensors), TARGET)
    with pytest.raises(UnsupportedModelError, match="lacks tensors 'mask_state'"):
        write_drafter(tmp_path / "lacking", replace(read, tensors=tensors), TARGET)
    assert not (tmp_path / "deep").exists()
