"""Models as users name them: ``demo``, a directory, or a hub id."""

from __future__ import annotations

from pathlib import Path

from app.demo.paths import DEMO, DEMO_DRAFTER, DEMO_TARGET
from engine.errors import ConfigError
from engine.model.resolve import check_model_name, resolve


def target_name(model: str) -> str:
    """What the loader takes for a target: the demo model's directory, or ``model`` itself."""
    return str(DEMO_TARGET) if model == DEMO else model


def check_model(model: str, revision: str | None = None) -> None:
    """Raises ConfigError if there cannot be such a model, or if it can have no revisions; asks no hub."""
    if "@" in model and not Path(model).expanduser().is_dir():
        raise ConfigError(f"model is {model!r}; revision (--revision) names a revision of the target")
    check_model_name(target_name(model), revision)


def texts_path(model: str, revision: str | None = None) -> Path:
    """Directory with a target's configuration and tokenizer; if it is on the hub, its weights may not be there.

    Raises:
        ConfigError: as ``model_path``.
    """
    return resolve(target_name(model), revision, weights=())


def model_path(model: str, revision: str | None = None) -> Path:
    """Directory of a target, downloaded if it is on the hub.

    Raises:
        ConfigError: there is no such model, or it lacks the revision.
    """
    return resolve(target_name(model), revision)


def is_on_hub(model: str) -> bool:
    """Whether a model is a hub id, and no directory of this machine."""
    return not Path(target_name(model)).expanduser().is_dir()


def drafter_path(model: str) -> str:
    """What the loader takes for a drafter: the demo drafter's directory, an absolute directory, or a hub id."""
    path = DEMO_DRAFTER if model == DEMO else Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model
