"""What the hashes of a checkpoint cover."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UnsupportedModelError
from engine.model.identity import SAMPLE, ModelIdentity, file_hashes, model_hash, tokenizer_hash_if_any
from engine.target.loading import describe_target
from engine.target.options import TargetOptions

SINGLE = "model.safetensors"


@pytest.fixture
def copy(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))


def test_a_copy_is_the_same_model_and_other_files_beside_it_do_not_matter(copy: Path, tiny_checkpoint: Path) -> None:
    (copy / "README.md").write_text("other")
    assert model_hash(copy) == model_hash(tiny_checkpoint)


def test_a_change_of_any_single_matrix_is_another_model(copy: Path) -> None:
    tensors = load_file(copy / SINGLE)
    known = {model_hash(copy)}
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            save_file(tensors | {name: tensor + 0.5}, copy / SINGLE, {"format": "pt"})
            known.add(model_hash(copy))
    assert len(known) == 1 + sum(tensor.ndim == 2 for tensor in tensors.values())


def test_a_change_of_config_shape_or_name_is_another_model(copy: Path) -> None:
    before = model_hash(copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rope_theta": 9.0}))
    assert model_hash(copy) != before
    (copy / "config.json").write_text(json.dumps(config))
    before = file_hashes(copy)[SINGLE]
    tensors = load_file(copy / SINGLE)
    name = "model.embed_tokens.weight"
    save_file(tensors | {name: tensors[name].reshape(-1, 2)}, copy / SINGLE, {"format": "pt"})
    assert file_hashes(copy)[SINGLE] != before


def test_a_file_is_read_in_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse, and of the size of a file of a large checkpoint: whole reads would take minutes."""
    size = 5 << 30
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (tmp_path / SINGLE).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    (tmp_path / "config.json").write_text("{}")
    before = model_hash(tmp_path)
    with (tmp_path / SINGLE).open("r+b") as file:
        file.seek(8 + len(header) + (size - SAMPLE) // 2 + 17)
        file.write(b"\1")
    assert model_hash(tmp_path) != before


@pytest.mark.parametrize(
    "raw", [b"", b"\xff" * 8, (3).to_bytes(8, "little") + b"abc", (12).to_bytes(8, "little") + b'{"w": [1, 2]}']
)
def test_a_file_without_a_header_is_named(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / SINGLE).write_bytes(raw)
    with pytest.raises(UnsupportedModelError, match=SINGLE):
        model_hash(tmp_path)


def test_a_target_says_in_which_numbers_it_runs_and_which_commit_it_is(tiny_checkpoint: Path, tmp_path: Path) -> None:
    commit = "0123456789" * 4
    snapshot = Path(shutil.copytree(tiny_checkpoint, tmp_path / "models--a--b" / "snapshots" / commit))
    options = TargetOptions(str(snapshot), dtype="bfloat16", quantization="int8", kv_bytes=4 << 20)
    identity = describe_target(options, snapshot).identity
    assert (identity.revision, identity.numbers) == (commit, "bfloat16+int8")
    assert identity.weights == model_hash(snapshot) != model_hash(tiny_checkpoint)
    assert identity.tokenizer == tokenizer_hash_if_any(tiny_checkpoint)
    plain = describe_target(TargetOptions(str(tiny_checkpoint), kv_bytes=4 << 20), tiny_checkpoint).identity
    assert (plain.revision, plain.numbers) == ("", str(torch.float32).removeprefix("torch."))


def test_identities_tell_how_they_differ() -> None:
    ours, theirs = ModelIdentity("a" * 32, "b" * 32), ModelIdentity("a" * 32, "c" * 32, numbers="float16")
    assert ours.difference(ours) == ""
    assert ours.digest != theirs.digest
    assert (
        ours.difference(theirs) == "tokenizer cccccccccccc instead of bbbbbbbbbbbb, numbers float16 instead of unknown"
    )


def test_a_snapshot_of_the_hub_is_known_by_its_commit_however_much_of_it_is_here(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    one, other = (tmp_path / "snapshots" / (digit * 40) for digit in ("a", "b"))
    for snapshot in (one, other):
        shutil.copytree(tiny_checkpoint, snapshot)
    whole = model_hash(one)
    assert whole != model_hash(other)
    for weights in one.glob("*.safetensors"):
        weights.unlink()
    assert model_hash(one) == whole
