"""Identifies a model by hashes of its config, weights and tokenizer, and by its precision.

Only samples of weight files are read: a checkpoint of 140 GB takes about a second. For a snapshot of the hub the commit
stands for the weights, because a process may have only some of them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec

from engine.model.checkpoint_files import CONFIG, headless, read_header, read_json_object
from engine.model.gguf.folder import SOURCE, referred_file, refers_to_gguf
from engine.model.resolve import revision_of

SAMPLE = 4096  # bytes read of every tensor


class ModelIdentity(msgspec.Struct, frozen=True):
    """Properties that two processes must share for one to continue a text of the other."""

    weights: str = ""  # ``model_hash``; for a simulated target the hash of its profile and recordings
    tokenizer: str = ""  # ``tokenizer_hash``; "" without a tokenizer.json
    revision: str = ""  # commit on the hub; "" for a local directory
    numbers: str = ""  # dtype, quantization and numerics: "bfloat16", "bfloat16+int8"

    @property
    def digest(self) -> str:
        """Hash of all fields, 32 hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]

    def difference(self, other: ModelIdentity) -> str:
        """Describe how the other one differs: ``weights 1f.. instead of 7c..``; "" if they are equal."""
        pairs = [(name, getattr(other, name), getattr(self, name)) for name in self.__struct_fields__]
        return ", ".join(
            f"{name} {theirs[:12] or 'unknown'} instead of {ours[:12] or 'unknown'}"
            for name, theirs, ours in pairs
            if theirs != ours
        )


UNKNOWN = ModelIdentity()


def model_hash(path: Path) -> str:
    """Hash a model's ``file_hashes``; for a snapshot of the hub, its config.json and commit.

    Raises:
        UnsupportedModelError: as ``file_hashes``.
    """
    commit = revision_of(path)
    hashed = _config_hash(path) | {"commit": commit} if commit else file_hashes(path)
    return hashlib.sha256(msgspec.json.encode(hashed)).hexdigest()[:32]


def file_hashes(path: Path) -> dict[str, str]:
    """Return hashes by file name: of config.json, and of every safetensors file or the GGUF file of the folder.

    The hash of a weight file covers its size, its header and ``SAMPLE`` bytes from the middle of each tensor. It
    detects a fine-tuned model, which changes whole matrices, but may miss an edit of single rows.

    Raises:
        UnsupportedModelError: a weight file has no header, or the GGUF file was removed or changed.
    """
    if refers_to_gguf(path):
        return _config_hash(path) | {SOURCE: referred_file(path).key()}
    return _config_hash(path) | {file.name: _file_hash(file) for file in sorted(path.glob("*.safetensors"))}


def _config_hash(path: Path) -> dict[str, str]:
    return {"config.json": hashlib.sha256((path / "config.json").read_bytes()).hexdigest()[:32]}


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        header = read_header(file, path)
        begin = file.tell()
        digest = hashlib.sha256(f"{path.stat().st_size}\n".encode() + header)
        try:
            places = sorted(
                tuple(tensor["data_offsets"]) for name, tensor in json.loads(header).items() if name != "__metadata__"
            )
            for first, last in places:
                file.seek(begin + first + max(0, last - first - SAMPLE) // 2)
                digest.update(file.read(max(0, min(SAMPLE, last - first))))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise headless(path) from error
    return digest.hexdigest()[:32]


def tokenizer_hash(path: Path) -> str:
    """Hash tokenizer.json, which determines the token ids of a text.

    Raises:
        OSError: the folder has no ``tokenizer.json``.
    """
    return hashlib.sha256((path / "tokenizer.json").read_bytes()).hexdigest()[:32]


def tokenizer_hash_if_any(path: Path) -> str:
    """Return ``tokenizer_hash``, or "" without a tokenizer.json."""
    return tokenizer_hash(path) if (path / "tokenizer.json").is_file() else ""


def vocab_size(path: Path) -> int:
    """Return a checkpoint's number of token ids; imports transformers only if config.json omits it.

    Raises:
        UnsupportedModelError: config.json cannot be read, or omits it and describes no supported model.
    """
    size = read_json_object(path / CONFIG).get("vocab_size")
    if isinstance(size, int):
        return size
    from engine.model.loader import load_spec

    return load_spec(path).vocab_size
