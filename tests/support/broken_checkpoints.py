"""Checkpoint folders with one fault each: in a JSON file or one of its keys, in weights, heads or the chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import FAMILIES, saved_family

INDEX, SINGLE, TEMPLATE = "model.safetensors.index.json", "model.safetensors", "chat_template.jinja"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
JSON_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES)
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 123456\n"
EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
MISSING = object()

Change = Callable[[Path], None]


@dataclass(frozen=True)
class BrokenFolder:
    """A copy of the checkpoint of a family, and what is changed in it.

    Attributes:
        name: of the fault.
        family: of the checkpoint.
        change: makes the fault in a folder.
        named: file or tensor that a refusal has to name.
        in_shards: an index names two weight files.
    """

    name: str
    family: str
    change: Change
    named: str = ""
    in_shards: bool = False

    def write(self, folder: Path) -> Path:
        shutil.copytree(saved_family(self.family), folder)
        if self.in_shards:
            _split(folder)
        self.change(folder)
        return folder


def broken_folders() -> list[BrokenFolder]:
    """All of them, in a fixed order; names are unique."""
    found = [*_damaged_files(), *_odd_keys(), *_weights(), *_heads(), *_templates()]
    assert len({one.name for one in found}) == len(found)
    return found


def write_json(file: Path, key: str, value: object) -> None:
    """Set a key, or remove it if ``value`` is ``MISSING``."""
    values = json.loads(file.read_text())
    values.pop(key, None)
    if value is not MISSING:
        values[key] = value
    file.write_text(json.dumps(values))


def write_tensors(folder: Path, **changes: Any) -> None:
    """Replace tensors of the only weight file, by names with ``__`` for a dot; None removes one."""
    tensors = load_file(folder / SINGLE)
    for name, value in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if value is not None:
            tensors[name.replace("__", ".")] = value
    save_file(tensors, folder / SINGLE, {"format": "pt"})


def _split(folder: Path) -> None:
    tensors = load_file(folder / SINGLE)
    names = sorted(tensors)
    half = len(names) // 2
    where = {}
    for file, part in zip(SHARDS, (names[:half], names[half:]), strict=True):
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
        where |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    (folder / SINGLE).unlink()


def _damaged_files() -> Iterator[BrokenFolder]:
    """Every small file absent, empty, no JSON, cut, of another type, or a pointer of Git LFS."""
    contents = {
        "empty": b"",
        "no JSON": b"{'a': 1}",
        "binary": b"\xff\xfe\x00",
        "a list": b"[1]",
        "a number": b"5",
        "an empty object": b"{}",
        "null": b"null",
        "a pointer": POINTER,
    }
    for file in (*JSON_FILES, INDEX):
        in_shards = file == INDEX
        yield BrokenFolder(f"{file} absent", "llama", partial(_remove, file=file), file, in_shards)
        yield BrokenFolder(f"{file} cut", "llama", partial(_cut, file=file, share=0.5), file, in_shards)
        yield BrokenFolder(f"{file} a folder", "llama", partial(_replace_by_folder, file=file), file, in_shards)
        for what, content in contents.items():
            yield BrokenFolder(f"{file} {what}", "llama", partial(_write, file=file, content=content), file, in_shards)


def _odd_keys() -> Iterator[BrokenFolder]:
    """Every key of every JSON file missing, null, or with values of other types or out of range."""
    for family in FAMILIES:
        for file in JSON_FILES if family == "llama" else JSON_FILES[:1]:
            values = json.loads((saved_family(family) / file).read_text())
            for key in dict.fromkeys((*values, *_MORE_KEYS.get(file, ()))):
                for odd in (MISSING, None, *_odd(values.get(key))):
                    if (key, odd) == ("max_position_embeddings", 3):  # a context shorter than the tests' prompt
                        continue
                    name = f"{family} {file} {key} {'missing' if odd is MISSING else json.dumps(odd)}"
                    named = "tokenizer" if file in TOKENIZER_FILES else file
                    yield BrokenFolder(name, family, partial(_set, file=file, key=key, value=odd), named)
    for family, values in _ODD_CONFIGS:
        change = partial(_set_all, values=values)
        yield BrokenFolder(f"{family} with {json.dumps(values)}", family, change, "config.json")
    for dtype in ("auto", "half", "float", "double", "torch.bfloat16", "torch.float32", "bfloat17"):
        for key in ("dtype", "torch_dtype"):
            change = partial(_set_all, values={"dtype": MISSING} | {key: dtype})
            yield BrokenFolder(f"config.json {key} is {dtype}", "llama", change, "config.json: dtype")
    for key in ("metadata", "weight_map"):
        for odd in (MISSING, None, 5, [], {}, {NORM: "absent.safetensors"}, {NORM: 5}):
            name = f"{INDEX} {key} {'missing' if odd is MISSING else json.dumps(odd)}"
            yield BrokenFolder(name, "llama", partial(_set, file=INDEX, key=key, value=odd), in_shards=True)


_NO_WINDOW = {"sliding_window": 0, "use_sliding_window": False, "layer_types": None}
_ODD_CONFIGS: tuple[tuple[str, dict[str, object]], ...] = (
    ("llama", {"sliding_window": 0}),
    ("llama", {"hidden_activation": None}),
    ("gemma3", {"hidden_act": None}),
    *((family, _NO_WINDOW) for family in ("qwen2", "qwen3")),
)
_MORE_KEYS = {
    "config.json": ("sliding_window", "layer_types", "quantization_config", "rope_scaling", "rope_theta"),
    "generation_config.json": ("temperature", "do_sample", "max_new_tokens"),
    "tokenizer_config.json": ("chat_template", "add_bos_token", "auto_map"),
}


def _odd(value: object) -> list[Any]:
    """Values that are wrong in place of ``value``."""
    if isinstance(value, bool):
        return ["yes", 2]
    if isinstance(value, int):
        return [0, -1, str(value), 3]
    if isinstance(value, float):
        return [0, -1.0, "x"]
    if isinstance(value, str):
        return [5, "nonsense", ""]
    if isinstance(value, list):
        return [{}, [], 5]
    return [5, [], "x", {"rope_type": "nonsense"}]


def _weights() -> Iterator[BrokenFolder]:
    """Weight files that are cut, missing or pointers; tensors that are missing, misshapen or no numbers."""
    for in_shards, file in ((False, SINGLE), (True, SHARDS[0]), (True, SHARDS[1])):
        made = partial(BrokenFolder, family="llama", named=file, in_shards=in_shards)
        yield made(f"{file} absent", change=partial(_remove, file=file))
        yield made(f"{file} a pointer", change=partial(_write, file=file, content=POINTER))
        yield made(f"{file} empty", change=partial(_write, file=file, content=b""))
        yield made(f"{file} a web page", change=partial(_write, file=file, content=b"<!doctype html>" * 99))
        for share in (0.001, 0.02, 0.5, 0.99):
            yield made(f"{file} cut at {share}", change=partial(_cut, file=file, share=share))
    yield BrokenFolder("a folder in two shards", "llama", lambda folder: None, in_shards=True)
    yield BrokenFolder("an adapter", "llama", _make_adapter, "adapter_config.json")
    for name in (EMBED, HEAD, NORM, "model.layers.3.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight"):
        key = name.replace(".", "__")
        lacks = partial(write_tensors, **{key: None})
        yield BrokenFolder(f"{name} missing", "llama", lacks, name)
        for what, value in (
            ("of another shape", torch.ones(3, 5)),
            ("a scalar", torch.ones(())),
            ("of whole numbers", torch.ones(32, 32, dtype=torch.int64)),
        ):
            yield BrokenFolder(f"{name} {what}", "llama", partial(write_tensors, **{key: value}), name)
    yield BrokenFolder("a tensor too many", "llama", partial(write_tensors, extra=torch.ones(2)))


def _heads() -> Iterator[BrokenFolder]:
    """Tied and untied heads, stored or not."""
    for family in FAMILIES:
        other = torch.randn(len(load_file(saved_family(family) / SINGLE)[EMBED]), 32, generator=torch.manual_seed(1))
        for tied in (True, False):
            says = f"{family} tied {tied}"
            yield BrokenFolder(f"{says} with another head", family, partial(_set_head, tied=tied, head=other))
            yield BrokenFolder(f"{says} with the embedding as head", family, partial(_set_head, tied=tied, head=EMBED))
            yield BrokenFolder(f"{says} without a head", family, partial(_set_head, tied=tied, head=None))
            yield BrokenFolder(f"{says} without an embedding", family, partial(_move_embedding, tied=tied))


def _templates() -> Iterator[BrokenFolder]:
    for what, template in (
        ("raises", "{{ raise_exception('no such role') }}"),
        ("is no Jinja", "{% for m in messages %}{{ m.content"),
        ("uses an unknown name", "{{ messages[0].nothing.at_all }}"),
        ("divides by zero", "{{ 1 // 0 }}"),
        ("is empty", ""),
        ("writes the message alone", "{{ messages[0].content }}"),
    ):
        change = partial(_write, file=TEMPLATE, content=template.encode())
        yield BrokenFolder(f"a template that {what}", "llama", change)
    yield BrokenFolder("no template", "llama", partial(_remove, file=TEMPLATE))


def _remove(folder: Path, file: str) -> None:
    (folder / file).unlink()


def _write(folder: Path, file: str, content: bytes) -> None:
    (folder / file).write_bytes(content)


def _cut(folder: Path, file: str, share: float) -> None:
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: int(share * len(content))])


def _replace_by_folder(folder: Path, file: str) -> None:
    _remove(folder, file)
    (folder / file).mkdir()


def _set(folder: Path, file: str, key: str, value: object) -> None:
    write_json(folder / file, key, value)


def _set_all(folder: Path, values: dict[str, object]) -> None:
    for key, value in values.items():
        write_json(folder / "config.json", key, value)


def _make_adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "acme/base", "peft_type": "LORA"}')


def _set_head(folder: Path, tied: bool, head: torch.Tensor | str | None) -> None:
    write_json(folder / "config.json", "tie_word_embeddings", tied)
    stored = load_file(folder / SINGLE)[head].clone() if isinstance(head, str) else head
    write_tensors(folder, lm_head__weight=stored)


def _move_embedding(folder: Path, tied: bool) -> None:
    _set_head(folder, tied, EMBED)
    write_tensors(folder, model__embed_tokens__weight=None)
