"""A model above the limit stays in its GGUF file, from which each stage dequantises its own layers."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch

from engine.errors import UnsupportedModelError
from engine.model.gguf import folder as folders
from engine.model.gguf.header import read_gguf_header
from engine.model.identity import file_hashes, model_hash
from engine.model.loader import check_weights, layer_files, load_shard
from engine.model.ranges import LayerRange, split_layers
from engine.model.resolve import resolve
from engine.model.weights import reader
from engine.model.weights.meter import Meter
from engine.model.weights.tensors import loaded_bytes
from tests.support.gguf_files import FAMILIES, model_for_gguf, write_gguf


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _both(file: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Folders for a file that keep its weights, and that refer to it."""
    kept = resolve(str(file))
    monkeypatch.setattr(folders, "KEPT_BYTES", 0)
    referring = resolve(str(file))
    assert (kept / "model.safetensors").is_file()
    assert not (referring / "model.safetensors").exists()
    return kept, referring


def _state(path: Path, layers: LayerRange, dtype: torch.dtype, quantization: str | None) -> dict[str, torch.Tensor]:
    meter = Meter()
    shard = load_shard(
        path, layers, dtype=dtype, device=torch.device("cpu"), n_positions=64, quantization=quantization, meter=meter
    )
    ends = [module for module in (shard._embed, shard._norm, shard._head) if module is not None]
    state = torch.nn.ModuleList([*shard.layers, *ends]).state_dict()
    return dict(state) | {"": torch.tensor(meter.n_bytes)}


@pytest.mark.parametrize("piece", [4096, reader.READ_BYTES])
@pytest.mark.parametrize(
    ("family", "kind", "dtype", "quantization"),
    [
        *((family, "Q4_K", torch.float32, None) for family in FAMILIES),
        ("llama", "Q6_K", torch.bfloat16, None),
        ("llama", "Q8_0", torch.float32, "int8"),
        ("gemma3_text", "BF16", torch.bfloat16, "fp8"),
    ],
)
def test_stages_of_a_referring_folder_equal_those_of_a_kept_one(
    family: str,
    kind: str,
    dtype: torch.dtype,
    quantization: str | None,
    piece: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "READ_BYTES", piece)
    write_gguf(tmp_path / "model.gguf", family, kind)
    kept, referring = _both(tmp_path / "model.gguf", monkeypatch)
    n_layers = model_for_gguf(family).config.num_hidden_layers
    for layers in split_layers(n_layers, 2):
        expected, found = (_state(path, layers, dtype, quantization) for path in (kept, referring))
        assert found.pop("") <= expected.pop("")  # bytes that were read
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), name


def test_a_stage_reads_its_own_layers_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "model.gguf", "llama", "Q5_K")
    monkeypatch.setattr(folders, "KEPT_BYTES", 0)
    path = resolve(str(tmp_path / "model.gguf"))
    tensors = read_gguf_header(tmp_path / "model.gguf").tensors
    for layers, others in (
        (LayerRange(0, 1, 2), ("blk.1.", "output")),
        (LayerRange(1, 2, 2), ("blk.0.", "token_embd")),
    ):
        own = [info for name, info in tensors.items() if not name.startswith((*others, "rope_freqs"))]
        assert int(_state(path, layers, torch.float32, None)[""]) == sum(info.n_bytes for info in own)


def test_the_identity_of_a_referring_folder_is_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.gguf"
    write_gguf(file, "qwen2", "Q4_0")
    kept, referring = _both(file, monkeypatch)
    copied = tmp_path / "copy.gguf"
    shutil.copy(file, copied)
    assert model_hash(resolve(str(copied))) == model_hash(referring) != model_hash(kept)
    assert layer_files(referring, LayerRange(0, 1, 2), embeds=False) == {"gguf.json"}
    assert file_hashes(referring).keys() == {"config.json", "gguf.json"}
    check_weights(referring)
    weights = sum(math.prod(info.shape) for info in read_gguf_header(file).tensors.values())
    assert loaded_bytes(referring) == 4 * weights
    assert 0 < loaded_bytes(kept) - 4 * weights < 10_000  # a header
    raw = bytearray(file.read_bytes())
    info = read_gguf_header(file).tensors["blk.1.ffn_up.weight"]
    raw[info.first + info.n_bytes // 2] ^= 1
    file.write_bytes(raw)
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf, which holds its weights, has changed"):
        model_hash(referring)
    assert resolve(str(file)) != referring
    file.unlink()
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf, which holds its weights, is no longer there"):
        check_weights(referring)
