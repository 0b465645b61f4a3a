"""Weights in one file or several, as safetensors or pickles; a pickle may contain tensors only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.drafter.checkpoint.files import read_config, read_tensors
from engine.errors import ConfigError, UnsupportedModelError

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def split(folder: Path, ending: str) -> None:
    """Two files with an index."""
    names = {name: f"part-{place}.{ending}" for place, name in enumerate(TENSORS)}
    for name, file in names.items():
        one = {name: TENSORS[name]}
        save_file(one, folder / file) if ending == "safetensors" else torch.save(one, folder / file)
    stem = "model" if ending == "safetensors" else "pytorch_model"
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps({"weight_map": names}))


def check(folder: Path) -> None:
    read = read_tensors(folder)
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in TENSORS.items())


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_an_index_names_the_files(ending: str, tmp_path: Path) -> None:
    split(tmp_path, ending)
    check(tmp_path)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "medusa_lm_head.pt", "model.safetensors"])
def test_a_single_file_is_read(file: str, tmp_path: Path) -> None:
    if file == "model.safetensors":  # read first
        save_file(TENSORS, tmp_path / file)
        (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    else:
        torch.save(TENSORS, tmp_path / file)
    torch.save({"learning_rate": 1}, tmp_path / "training_args.bin")
    check(tmp_path)


@dataclass
class Calls:
    """A pickle that creates a file when it is loaded."""

    file: Path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


def test_a_pickle_of_anything_but_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"a": Calls(tmp_path / "ran")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="holds other objects than tensors"):
        read_tensors(tmp_path)
    assert not (tmp_path / "ran").exists()
    for content in ([1.0], {"a": 1.0}):
        torch.save(content, tmp_path / "pytorch_model.bin")
        with pytest.raises(UnsupportedModelError, match="does not map names to tensors"):
            read_tensors(tmp_path)


def test_missing_and_damaged_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="holds no weights; supported are"):
        read_tensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match="is damaged"):
        read_tensors(tmp_path)
    split(tmp_path, "safetensors")
    (tmp_path / "part-1.safetensors").unlink()
    with pytest.raises(UnsupportedModelError, match=r"lacks the file 'part-1.safetensors', which model.* names"):
        read_tensors(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(UnsupportedModelError, match="must be a JSON object"):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "holds no drafter"), ("{", "is no JSON"), ("[1]", "must be a JSON object")],
)
def test_a_config_that_is_no_object_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path)
