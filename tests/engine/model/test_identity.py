"""What the hashes of a checkpoint cover."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model.identity import SAMPLE, ModelIdentity, file_hashes, model_hash, tokenizer_hash_if_any
from engine.target_model.loading import describe_target
from engine.target_model.options import TargetOptions

SINGLE = "model.safetensors"


@pytest.fixture
def copy(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))


def test_a_change_of_a_matrix_name_shape_or_config_is_another_model(copy: Path, tiny_checkpoint: Path) -> None:
    (copy / "README.md").write_text("other")
    assert model_hash(copy) == model_hash(tiny_checkpoint)
    tensors = load_file(copy / SINGLE)
    matrices = [name for name, tensor in tensors.items() if tensor.ndim == 2]
    known = {model_hash(copy)}
    for name in matrices:
        save_file(tensors | {name: tensors[name] + 0.5}, copy / SINGLE, {"format": "pt"})
        known.add(model_hash(copy))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rope_theta": 9.0}))
    known.add(model_hash(copy))
    embedding = "model.embed_tokens.weight"
    before = file_hashes(copy)[SINGLE]
    save_file(tensors | {embedding: tensors[embedding].reshape(-1, 2)}, copy / SINGLE, {"format": "pt"})
    assert file_hashes(copy)[SINGLE] != before
    assert len({*known, model_hash(copy)}) == 3 + len(matrices)


def test_a_large_file_is_read_in_samples(tmp_path: Path) -> None:
    """The file is sparse and as large as one of a large checkpoint: reading it whole would take minutes."""
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


def test_a_target_reports_its_precision_and_commit(tiny_checkpoint: Path, tmp_path: Path) -> None:
    one, other = (tmp_path / "snapshots" / (digit * 40) for digit in ("a", "b"))
    for snapshot in (one, other):
        shutil.copytree(tiny_checkpoint, snapshot)
    options = TargetOptions(str(one), dtype="bfloat16", quantization="int8", kv_bytes=4 << 20)
    identity = describe_target(options, one).identity
    assert (identity.revision, identity.numbers) == ("a" * 40, "bfloat16+int8")
    assert identity.weights == model_hash(one) != model_hash(other)
    assert model_hash(one) != model_hash(tiny_checkpoint)
    assert identity.tokenizer == tokenizer_hash_if_any(tiny_checkpoint)
    plain = describe_target(TargetOptions(str(tiny_checkpoint), kv_bytes=4 << 20), tiny_checkpoint).identity
    assert (plain.revision, plain.numbers) == ("", str(torch.float32).removeprefix("torch."))
    for weights in one.glob("*.safetensors"):
        weights.unlink()
    assert model_hash(one) == identity.weights, "a commit stands for weights that this process does not have"


def test_identities_report_how_they_differ() -> None:
    ours, theirs = ModelIdentity("a" * 32, "b" * 32), ModelIdentity("a" * 32, "c" * 32, numbers="float16")
    assert ours.difference(ours) == ""
    assert ours.digest != theirs.digest
    assert (
        ours.difference(theirs) == "tokenizer cccccccccccc instead of bbbbbbbbbbbb, numbers float16 instead of unknown"
    )
