"""Resolves the model of ``draft-model``, and checks that it shares the target's token ids."""

from __future__ import annotations

from pathlib import Path

from app.config.serve import ServeConfig
from app.inputs.models import drafter_path, read_checkpoint
from app.inputs.tokenizers import load_tokenizer
from engine.errors import ConfigError, UnsupportedModelError
from engine.model.resolve import resolve, revision_of
from engine.model.spec import ModelSpec
from engine.model.weights.tensors import loaded_bytes
from engine.target_model.options import GIB
from speculators.draft_model.config import DraftModelConfig

FORWARD = GIB // 2  # estimated bytes of a GPU for the forward passes of a draft model


def draft_model_bytes(config: ServeConfig) -> int:
    """Return about how many bytes of the target's GPU the draft model takes, once the first request loads it; or 0."""
    settings = DraftModelConfig(**config.draft_model_settings)
    if config.draft_model is None or settings.device == "cpu":
        return 0
    return loaded_bytes(resolve(drafter_path(config.draft_model))) + int(settings.kv_gib * GIB) + FORWARD


def check_drafter(model: str, path: Path, spec: ModelSpec) -> None:
    """Refuse a draft model whose token ids differ in meaning from those of the target in directory ``path``.

    How text is cut into tokens does not matter, because a draft model reads ids. Raises ConfigError if there is no such
    model or the vocabularies differ, UnsupportedModelError if it cannot be run.
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
        raise ConfigError(f"--draft-model {model} has another tokenizer than the target: ids stand for other tokens")
