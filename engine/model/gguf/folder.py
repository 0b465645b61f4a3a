"""Converts a GGUF file into a checkpoint folder in the user's cache.

Weights of at most ``KEPT_BYTES`` in fp32 are stored there as model.safetensors. The folder of a larger model refers to
the GGUF file, whose rows are dequantized whenever layers are loaded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from engine.errors import ConfigError, UnsupportedModelError
from engine.kept_files import cache_folder, hold_lock
from engine.model.gguf.config import read_config
from engine.model.gguf.header import GgufHeader, read_gguf_header
from engine.model.gguf.metadata import GgufMetadata
from engine.model.gguf.tensors import GgufTensor, map_tensors
from engine.model.gguf.tokenizer import build_tokenizer, end_ids

RECIPE = 1  # version of the folder's contents; older folders are not used
KEPT_BYTES = 2_000_000_000  # of all weights in fp32
WEIGHTS = "model.safetensors"
SOURCE = "gguf.json"

logger = logging.getLogger(__name__)


class GgufSource(msgspec.Struct, frozen=True):
    """Contents of ``gguf.json`` in a folder: the converted file, and the sizes of the folder's other files."""

    path: str  # absolute, of the GGUF file
    key: str  # its ``GgufHeader.key``
    files: dict[str, int]  # name -> bytes


def checkpoint_folder(file: Path) -> Path:
    """Return the folder of a GGUF file, and convert the file first if necessary. Other processes wait meanwhile.

    Raises:
        UnsupportedModelError: the file cannot be read, or is not supported.
        ConfigError: the folder cannot be written.
    """
    try:
        stat = file.stat()
    except OSError as error:
        raise UnsupportedModelError(f"{file} cannot be read: {error.strerror}") from error
    key, n_weights = _key_and_size(file, stat.st_size, stat.st_mtime_ns)
    folder = cache_folder() / "gguf" / f"{key}-{RECIPE}"
    if not _keeps_weights(n_weights):  # folders for two copies of a file refer to one each
        folder = folder.with_name(f"{folder.name}-{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]}")
    if _is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder):
            if not _is_whole(folder):
                _convert(read_gguf_header(file), key, folder)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be converted, because {folder} cannot be written: {error.strerror or error}; set "
            f"XDG_CACHE_HOME to a folder that can, or convert the file where it can be written and give that folder "
            f"as --model"
        ) from error
    return folder


@lru_cache(maxsize=8)
def _key_and_size(file: Path, n_bytes: int, modified_ns: int) -> tuple[str, int]:
    """Return a file's key and number of weights. Reading a header takes 0.3 s, and a stage asks four times."""
    header = read_gguf_header(file)
    return header.key(), header.n_weights


def is_converted(folder: Path) -> bool:
    """Return whether a checkpoint folder was converted from a GGUF file."""
    return _read_source(folder) is not None


def refers_to_gguf(folder: Path) -> bool:
    """Return whether a checkpoint folder's weights are in a GGUF file elsewhere."""
    source = _read_source(folder)
    return source is not None and WEIGHTS not in source.files


def referred_file(folder: Path) -> GgufHeader:
    """Read the header of the GGUF file that a folder refers to.

    Raises:
        UnsupportedModelError: the file was removed or changed.
    """
    source = _read_source(folder)
    assert source is not None
    if not Path(source.path).is_file():
        raise UnsupportedModelError(
            f"{folder} cannot be loaded: {source.path}, which holds its weights, is no longer there; give the place "
            f"where that file is now as --model"
        )
    header = read_gguf_header(Path(source.path))
    if header.key() != source.key:
        raise UnsupportedModelError(
            f"{folder} cannot be loaded: {source.path}, which holds its weights, has changed since it was converted; "
            f"give that file as --model"
        )
    return header


def _read_source(folder: Path) -> GgufSource | None:
    """Return ``gguf.json``; None if it is missing or damaged."""
    try:
        return msgspec.json.decode((folder / SOURCE).read_bytes(), type=GgufSource)
    except (OSError, msgspec.DecodeError):
        return None


def _is_whole(folder: Path) -> bool:
    """Return whether a folder has all files that ``gguf.json`` lists."""
    source = _read_source(folder)
    try:
        return source is not None and all((folder / name).stat().st_size == n for name, n in source.files.items())
    except OSError:
        return False


def _convert(header: GgufHeader, key: str, folder: Path) -> None:
    config = read_config(header)
    tensors = map_tensors(header, config)
    print(f"Converting {header.path} into {folder} (once) ...", file=sys.stderr, flush=True)
    for old in (folder, *folder.parent.glob(f".{folder.name}.*")):  # damaged, or left by a process that was stopped
        shutil.rmtree(old, ignore_errors=True)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    unfinished.mkdir()
    try:
        _write_texts(header, config, unfinished)
        if _keeps_weights(header.n_weights):
            _write_weights(header, tensors, unfinished / WEIGHTS)
        files = {path.name: path.stat().st_size for path in unfinished.iterdir()}
        source = GgufSource(str(header.path.resolve()), key, files)
        (unfinished / SOURCE).write_bytes(msgspec.json.encode(source))
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    logger.info("%s was converted into %s", header.path, folder)


def _keeps_weights(n_weights: int) -> bool:
    return 4 * n_weights <= KEPT_BYTES


def _write_texts(header: GgufHeader, config: dict[str, Any], folder: Path) -> None:
    data = GgufMetadata(header)
    tokenizer, settings = build_tokenizer(header)
    if tokenizer.get_vocab_size() > config["vocab_size"]:
        raise data.refusal(
            f"its tokenizer has {tokenizer.get_vocab_size()} tokens, its embedding {config['vocab_size']} rows"
        )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    ids = end_ids(header)
    starts = {name: config[name] for name in ("bos_token_id", "pad_token_id") if config[name] is not None}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": ids} | starts if ids else starts)
    _write_json(folder / "tokenizer_config.json", settings)
    template = data.text("tokenizer.chat_template", None)
    if template is not None:
        (folder / "chat_template.jinja").write_bytes(template.encode())


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_weights(header: GgufHeader, tensors: dict[str, GgufTensor], file: Path) -> None:
    """Write all tensors in fp32 as a safetensors file."""
    places: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, stored in tensors.items():
        begin, end = end, end + 4 * prod(stored.info.shape)
        places[name] = {"dtype": "F32", "shape": [*stored.info.shape], "data_offsets": [begin, end]}
    head = json.dumps(places).encode()
    head += b" " * (-len(head) % 8)
    with file.open("wb") as out, tqdm(desc=file.name, total=end, unit="B", unit_scale=True, disable=None) as bar:
        out.write(len(head).to_bytes(8, "little") + head)
        for stored in tensors.values():
            for rows in stored.read(header):
                out.write(rows.data)
                bar.update(rows.nbytes)
        out.flush()
        os.fsync(out.fileno())
