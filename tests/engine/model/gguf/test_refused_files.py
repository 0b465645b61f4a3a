"""A GGUF file that cannot be served is refused with a sentence that names the cause."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError, SpectraError, UnsupportedModelError
from engine.model.gguf import folder as folders
from engine.model.gguf import header as headers
from engine.model.resolve import check_model_name, resolve
from tests.support.gguf_files import write_gguf


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("family", "changed", "message"),
    [
        (
            "llama",
            {"general.architecture": "mamba"},
            "its architecture is 'mamba'; supported are llama, mistral, qwen2",
        ),
        ("llama", {"llama.block_count": None}, "its metadata lacks llama.block_count"),
        ("llama", {"llama.block_count": "2"}, "llama.block_count is '2', which is not of the right type"),
        ("llama", {"llama.block_count": 0}, "llama.block_count is 0; it must be at least 1"),
        ("gemma3_text", {"gemma3.block_count": 1 << 30}, "gemma3.block_count is 1073741824, but it has 93 tensors"),
        ("llama", {"llama.attention.head_count_kv": 3}, "it has 4 heads of size 64 and 3 key heads"),
        (
            "qwen3",
            {"qwen3.attention.key_length": 7, "qwen3.attention.value_length": 7},
            "4 heads of size 7 and 2 key heads",
        ),
        ("llama", {"llama.attention.head_count": 0}, "llama.attention.head_count is 0; it must be at least 1"),
        ("llama", {"llama.block_count": 3}, "it lacks the tensor 'blk.2.attn_q.weight'"),
        ("llama", {"llama.block_count": 1}, "it has the tensor 'blk.1.*', which a model of type llama lacks"),
        ("llama", {"llama.feed_forward_length": 256}, "has the shape .512, 256., but its metadata require .256, 256."),
        ("llama", {"llama.rope.dimension_count": 32}, "llama.rope.dimension_count is 32; it must be 64"),
        ("llama", {"llama.attention.value_length": 32}, "llama.attention.value_length is 32; it must be 64"),
        ("llama", {"llama.rope.freq_base": float("nan")}, "llama.rope.freq_base is nan; it must be finite"),
        ("llama", {"llama.rope.freq_base": 1.0}, "llama.rope.freq_base is 1.0; it must be above 1"),
        ("llama", {"llama.rope.freq_base": 10000.0}, "rope_freqs.weight scales positions in another way than Llama 3"),
        (
            "llama",
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 64},
            "only one of the two",
        ),
        ("qwen2", {"qwen2.rope.scaling.type": "longrope"}, "type is 'longrope'; supported are none, linear and yarn"),
        (
            "qwen2",
            {"qwen2.rope.scaling.yarn_log_multiplier": 0.1},
            "yarn_log_multiplier is set, which is not supported",
        ),
        ("qwen2", {"qwen2.rope.scaling.original_context_length": None}, "lacks qwen2.rope.scaling.original_context"),
        (
            "qwen3",
            {"qwen3.attention.sliding_window": 8},
            "qwen3.attention.sliding_window is 8; only llama, mistral and gemma3",
        ),
        ("gemma3_text", {"gemma3.attn_logit_softcapping": 50.0}, "attn_logit_softcapping is set"),
        ("gemma3_text", {"gemma3.attention.sliding_window_pattern": [True]}, "has 1 entries; it must have 7"),
        ("gemma3_text", {"gemma3.attention.sliding_window_pattern": 0}, "is 0; it must be at least 1"),
        ("llama", {"general.alignment": 33}, "general.alignment is 33; it must be a power of two"),
        ("llama", {"split.count": [1, 2]}, "it is one of .1 2. parts"),
        ("llama", {"split.count": 3}, "it is one of 3 parts.*llama-gguf-split --merge"),
        ("llama", {"tokenizer.ggml.model": None}, "tokenizer.ggml.model is ''; supported are gpt2 and llama"),
        ("llama", {"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model is 'bert'; supported are gpt2 and llama"),
        ("llama", {"tokenizer.ggml.tokens": None}, "its metadata lacks tokenizer.ggml.tokens"),
        (
            "llama",
            {"tokenizer.ggml.tokens": [1, 2]},
            r"tokenizer.ggml.tokens is .\[1 2\]., which is not of the right type",
        ),
        ("llama", {"tokenizer.ggml.tokens": ["a", "a"]}, "tokenizer.ggml.tokens has one token twice"),
        ("llama", {"tokenizer.ggml.tokens": [str(i) for i in range(999)]}, "merges do not fit the vocabulary"),
        ("llama", {"tokenizer.ggml.merges": ["a b c"]}, "merges do not fit the vocabulary"),
        ("llama", {"tokenizer.ggml.merges": [1]}, r"tokenizer.ggml.merges is .\[1\]., which is not of the right type"),
        ("llama", {"tokenizer.ggml.token_type": ["1"] * 320}, "token_type is .*, which is not of the right type"),
        ("llama", {"tokenizer.ggml.token_type": [1]}, "token_type has 1 entries; it must have 320"),
        ("llama", {"tokenizer.ggml.eos_token_id": 320}, "eos_token_id is 320, but the vocabulary has 320 tokens"),
        ("llama", {"tokenizer.ggml.pre": "chatglm-bpe"}, "tokenizer.ggml.pre is 'chatglm-bpe'; supported are gpt-2"),
        ("llama", {"tokenizer.ggml.model": "llama"}, "its metadata lacks tokenizer.ggml.scores"),
    ],
)
def test_metadata_that_are_not_supported_are_named(
    family: str, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "model.gguf", family, "Q4_0", changed)
    with pytest.raises(UnsupportedModelError, match=rf"model\.gguf cannot be loaded.*{message}"):
        resolve(str(tmp_path / "model.gguf"))
    assert not [*(tmp_path / "cache").rglob("config.json")]


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "qwen2", without="blk.1.attn_k.bias")
    with pytest.raises(UnsupportedModelError, match=r"it lacks the tensor 'blk\.1\.attn_k\.bias'"):
        resolve(str(tmp_path / "model.gguf"))


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("a", np.zeros((1, 54), np.uint8), raw_dtype=GGMLQuantizationType.TQ1_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        UnsupportedModelError, match=r"its tensor 'a' has type TQ1_0; supported are F32, F16, BF16, Q4_0"
    ):
        resolve(str(tmp_path / "model.gguf"))


def _number(form: str, value: int) -> bytes:
    return struct.pack(form, value)


def _text(text: bytes) -> bytes:
    return _number("<Q", len(text)) + text


START = b"GGUF" + _number("<I", 3)
ONE_VALUE = START + _number("<Q", 0) + _number("<Q", 1)
ONE_TENSOR = START + _number("<Q", 1) + _number("<Q", 0) + _text(b"a")
HUGE = _number("<Q", (1 << 63) - 1)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "ends at byte 0, in the middle of its header"),
        (b"GG", "ends at byte 2, in the middle of its header"),
        (b"safetensors", "does not begin with the letters GGUF"),
        (START, "ends at byte 8, in the middle of its header"),
        (b"GGUF" + _number("<I", 1) + bytes(16), "its version is 1; versions 2 and 3 are read"),
        (b"GGUF" + _number(">I", 3) + bytes(16), "it is big-endian; only little-endian files are read"),
        (START + HUGE * 2, "in the middle of its header"),
        (ONE_VALUE + HUGE, "in the middle of its header"),
        (ONE_VALUE + _text(b"k") + _number("<I", 9) + _number("<I", 10) + HUGE, "in the middle of its header"),
        (ONE_VALUE + _text(b"k") + _number("<I", 9) + _number("<I", 8) + HUGE, "in the middle of its header"),
        (ONE_VALUE + _text(b"k") + _number("<I", 9) + _number("<I", 9) + bytes(8), "an array of type 9, which is not"),
        (ONE_VALUE + _text(b"k") + _number("<I", 99), "a value of the unknown type 99"),
        (ONE_VALUE + _text(b"\xff"), "a name in its header is not UTF-8"),
        (START + bytes(8) + _number("<Q", 2) + (_text(b"k") + bytes(5)) * 2, "the key 'k' occurs twice"),
        (ONE_TENSOR + _number("<I", 1 << 31), "its tensor 'a' has 2147483648 dimensions"),
        (ONE_TENSOR + _number("<I", 1) + bytes(20), r"its tensor 'a' has the shape \[0\]"),
        (ONE_TENSOR + _number("<I", 4) + HUGE * 4 + bytes(12), "its tensor 'a' would end at byte"),
        (ONE_TENSOR + _number("<I", 1) + _number("<Q", 1) + bytes(4) + HUGE, "its tensor 'a' would end at byte"),
        (ONE_TENSOR + _number("<I", 1) + _number("<Q", 33) + _number("<I", 2) + bytes(8), "33 weights, not a multiple"),
    ],
)
def test_damaged_and_hostile_headers_are_refused(raw: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(raw)
    with pytest.raises(UnsupportedModelError, match=rf"model\.gguf cannot be loaded.*{message}"):
        resolve(str(tmp_path / "model.gguf"))


def test_a_header_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "model.gguf", "llama")
    monkeypatch.setattr(headers, "LONGEST_HEADER", 1000)
    monkeypatch.setattr(headers, "_CHUNK", 100)
    with pytest.raises(UnsupportedModelError, match="its header has more than 1000 bytes"):
        resolve(str(tmp_path / "model.gguf"))


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    tensor = _text(b"a") + _number("<I", 1) + _number("<Q", 1) + bytes(12)
    (tmp_path / "model.gguf").write_bytes(START + _number("<Q", 2) + bytes(8) + tensor * 2 + bytes(64))
    with pytest.raises(UnsupportedModelError, match="two of its tensors have one name"):
        resolve(str(tmp_path / "model.gguf"))


@cache
def _written(folder: Path) -> tuple[bytes, int]:
    """A file, and where its header ends."""
    write_gguf(folder / "whole.gguf", "llama", "Q4_0")
    tensors = headers.read_gguf_header(folder / "whole.gguf").tensors
    return (folder / "whole.gguf").read_bytes(), min(info.first for info in tensors.values())


@given(data=st.data())
def test_no_damage_to_a_header_causes_another_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole, end = _written(folder)
    raw = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, end - 8))
        raw[place : place + 8] = data.draw(st.binary(min_size=8, max_size=8) | st.just(HUGE))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    file = folder / "damaged.gguf"
    file.write_bytes(raw[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "damaged"))
        patch.setattr(folders, "KEPT_BYTES", 0)
        assert _resolved_or_refused(file)


def _resolved_or_refused(file: Path) -> bool:
    """Whether a file has a folder, or is refused by its name."""
    try:
        return resolve(str(file)).is_dir()
    except SpectraError as error:
        return str(file) in str(error)


def test_names_that_are_no_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    check_model_name(str(tmp_path / "folder.gguf"))
    for name in ("missing.gguf", "models/missing.gguf", "/missing.gguf"):
        with pytest.raises(ConfigError, match=f"model '{name}' is not a file"):
            check_model_name(name)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"revision .* is 'main', but model .* is a file"):
        check_model_name(str(file), "main")
    part = tmp_path / "model-00001-of-00003.gguf"
    part.write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match=r"it is one of 3 parts.*llama-gguf-split --merge"):
        resolve(str(part))
