"""The model of ``draft-model``: where it is, and whether it speaks the target's tokens."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

from app.inputs.models import drafter_path, read_checkpoint
from app.inputs.tokenizers import load_tokenizer
from engine.errors import ConfigError, UnsupportedModelError
from engine.model.resolve import resolve, revision_of
from engine.model.spec import ModelSpec
from engine.model.weights.tensors import loaded_bytes
from engine.target_model.options import GIB
from speculators.draft_model.config import DraftModelConfig
from speculators.method import SpeculatorOptions

FORWARD = GIB // 2  # bytes of a GPU for a drafter's forwards: an estimate


def offline_drafter(arguments: argparse.Namespace, path: Path, spec: ModelSpec) -> SpeculatorOptions:
    """Return options with the draft model of the flags, for the target in directory ``path``.

    Its dtype, device and numerics are the target's.

    Raises:
        ConfigError: there is no such model, or it has another tokenizer than the target.
        UnsupportedModelError: it cannot be run.
    """
    if arguments.draft_tokens < 1:
        raise ConfigError(f"--draft-tokens is {arguments.draft_tokens}; it must be at least 1")
    if arguments.draft_nodes < 0:
        raise ConfigError(f"--draft-nodes is {arguments.draft_nodes}; it must be 0 (a chain) or more")
    config = DraftModelConfig(
        draft_tokens=arguments.draft_tokens,
        tree_nodes=arguments.draft_nodes,
        dtype=arguments.dtype,
        device=arguments.device,
        numerics=arguments.numerics,
    )
    if arguments.draft_model is None:
        return SpeculatorOptions().with_settings(config)
    model = drafter_path(arguments.draft_model)
    check_drafter(model, path, spec)
    return SpeculatorOptions(draft_model=model).with_settings(config)


def draft_model_bytes(arguments: argparse.Namespace) -> int:
    """Estimated bytes that the draft model, loaded with the first request, takes of the target's GPU; 0 without either.

    Raises:
        ConfigError: there is no such model.
    """
    named = getattr(arguments, "draft_model", None)
    if named is None or arguments.device == "cpu":
        return 0
    path = drafter_path(named)
    return loaded_bytes(resolve(path)) + int(DraftModelConfig().kv_gib * GIB) + FORWARD


def check_drafter(model: str, path: Path, spec: ModelSpec) -> None:
    """Refuse a draft model whose token ids mean something else than those of the target in directory ``path``.

    Raises:
        ConfigError: the vocabularies differ; the message says how.
        UnsupportedModelError: the drafter cannot be run.
    """
    try:
        found = resolve(model, weights=())
        own, theirs = read_checkpoint(found, has_weights=not revision_of(found))
    except (ConfigError, UnsupportedModelError) as error:
        raise type(error)(f"--draft-model: {error}") from error
    if own.vocab_size != spec.vocab_size:
        raise ConfigError(
            f"--draft-model {model} has a vocabulary of {own.vocab_size} token ids, the target one of "
            f"{spec.vocab_size}: a drafter must have the target's tokenizer"
        )
    if vocabulary_hash(theirs.get_vocab()) != vocabulary_hash(load_tokenizer(path).get_vocab()):
        raise ConfigError(
            f"--draft-model {model} has another tokenizer than the target: the same ids stand for other tokens"
        )


def vocabulary_hash(vocabulary: dict[str, int]) -> str:
    """Of which token every id stands for; how text is cut into tokens does not matter to a drafter, which sees ids."""
    return hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()
