"""Resolves the model of ``draft-model``, and checks that it shares the target's token ids."""

from __future__ import annotations

import argparse
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

FORWARD = GIB // 2  # estimated bytes of a GPU for the forward passes of a draft model


def offline_drafter(arguments: argparse.Namespace, path: Path, spec: ModelSpec) -> SpeculatorOptions:
    """Return options with the draft model of the flags, for the target in directory ``path``.

    Its dtype, device and numerics are the target's.

    Raises:
        ConfigError: there is no such model, or its tokenizer differs from the target's.
        UnsupportedModelError: it cannot be run.
    """
    if arguments.draft_tokens < 1:
        raise ConfigError(f"--draft-tokens is {arguments.draft_tokens}; it must be at least 1")
    if arguments.draft_nodes < 0:
        raise ConfigError(f"--draft-nodes is {arguments.draft_nodes}; it must be 0 (a chain) or more")
    model = None
    if arguments.draft_model is not None:
        model = drafter_path(arguments.draft_model)
        check_drafter(model, path, spec)
    config = DraftModelConfig(
        draft_tokens=arguments.draft_tokens,
        tree_nodes=arguments.draft_nodes,
        dtype=arguments.dtype,
        device=arguments.device,
        numerics=arguments.numerics,
    )
    return SpeculatorOptions(draft_model=model).with_settings(config)


def draft_model_bytes(arguments: argparse.Namespace) -> int:
    """Return estimated bytes of the target's GPU that the draft model takes; 0 on a CPU or without a draft model.

    The target leaves them free, since the draft model is loaded with the first request.

    Raises:
        ConfigError: there is no such model.
    """
    named = getattr(arguments, "draft_model", None)
    if named is None or arguments.device == "cpu":
        return 0
    return loaded_bytes(resolve(drafter_path(named))) + int(DraftModelConfig().kv_gib * GIB) + FORWARD


def check_drafter(model: str, path: Path, spec: ModelSpec) -> None:
    """Refuse a draft model whose token ids differ in meaning from those of the target in directory ``path``.

    How text is cut into tokens does not matter, because a draft model reads ids.

    Raises:
        ConfigError: the vocabularies differ; the message says how.
        UnsupportedModelError: the draft model cannot be run.
    """
    try:
        found = resolve(model, weights=())
        own, tokenizer = read_checkpoint(found, has_weights=not revision_of(found))
    except (ConfigError, UnsupportedModelError) as error:
        raise type(error)(f"--draft-model: {error}") from error
    if own.vocab_size != spec.vocab_size:
        raise ConfigError(
            f"--draft-model {model} has a vocabulary of {own.vocab_size} token ids, but the target has "
            f"{spec.vocab_size}: a draft model must have the target's tokenizer"
        )
    if tokenizer.get_vocab() != load_tokenizer(path).get_vocab():
        raise ConfigError(
            f"--draft-model {model} has another tokenizer than the target: the same ids stand for other tokens"
        )
