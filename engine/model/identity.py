"""Which model a process has: hashes of configuration, weights and tokenizer, and the numbers that the model runs in.

Reads files, and never whole weight files: a checkpoint of 140 GB takes about a second. Of a snapshot of the hub the
commit stands for the weights, of which no process need have all.
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
    """What must be equal in two processes for one to go on with a text that the other began."""

    weights: str = ""  # ``model_hash``; of a simulated target the hash of its profile and answers
    tokenizer: str = ""  # ``tokenizer_hash``; "": there is no tokenizer.json
    revision: str = ""  # commit on the hub; "": a directory of the user's own
    numbers: str = ""  # dtype and quantization, as in "bfloat16" or "bfloat16+int8"

    @property
    def digest(self) -> str:
        """All of it in 32 hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]

    def difference(self, other: ModelIdentity) -> str:
        """What tells the other one from this one, for a message: ``weights 1f.. instead of 7c..``; "": nothing."""
        pairs = [(name, getattr(other, name), getattr(self, name)) for name in self.__struct_fields__]
        return ", ".join(
            f"{name} {theirs[:12] or 'unknown'} instead of {ours[:12] or 'unknown'}"
            for name, theirs, ours in pairs
            if theirs != ours
        )


UNKNOWN = ModelIdentity()


def model_hash(path: Path) -> str:
    """A model's hash: of ``file_hashes``; of a snapshot of the hub that of config.json and commit, whichever weight
    files are here.

    Raises:
        UnsupportedModelError: as ``file_hashes``.
    """
    commit = revision_of(path)
    hashed = _config_hash(path) | {"commit": commit} if commit else file_hashes(path)
    return hashlib.sha256(msgspec.json.encode(hashed)).hexdigest()[:32]


def file_hashes(path: Path) -> dict[str, str]:
    """Hashes by name: of the whole config.json, and of every safetensors file here, or of the GGUF file that the folder
    refers to, its size, its header and ``SAMPLE`` bytes from the middle of each of its tensors.

    Names, shapes and dtypes of tensors are covered as a whole. Of their values a sample is: a fine-tuned model changes
    whole matrices and is told apart, an edit of single rows of a matrix may not be.

    Raises:
        UnsupportedModelError: a weight file has no header, or the GGUF file is no longer there or has changed.
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
    """A tokenizer's hash: what decides which ids a text has. Two models with one tokenizer have one hash.

    Raises:
        OSError: the folder has no ``tokenizer.json``.
    """
    return hashlib.sha256((path / "tokenizer.json").read_bytes()).hexdigest()[:32]


def tokenizer_hash_if_any(path: Path) -> str:
    """``tokenizer_hash``, "" without a ``tokenizer.json``."""
    return tokenizer_hash(path) if (path / "tokenizer.json").is_file() else ""


def vocab_size(path: Path) -> int:
    """Number of token ids of the checkpoint in directory ``path``; loads transformers only if config.json omits it.

    Raises:
        UnsupportedModelError: config.json cannot be read, or omits it and describes no supported model.
    """
    size = read_json_object(path / CONFIG).get("vocab_size")
    if isinstance(size, int):
        return size
    from engine.model.loader import load_spec

    return load_spec(path).vocab_size
