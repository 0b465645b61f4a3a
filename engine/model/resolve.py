"""Where a model's files are."""

from __future__ import annotations

import re
from pathlib import Path

from engine.errors import ConfigError

HUB_ID = re.compile(r"(?!.{97})[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)


def check_model_name(model: str) -> None:
    """Raises ConfigError if ``model`` is no directory and has not the form of a hub id either; asks no hub."""
    if not Path(model).expanduser().is_dir() and not HUB_ID.fullmatch(model):
        raise ConfigError(f"model {model!r} is neither a directory nor a hub id, as in Qwen/Qwen3-0.6B")


def resolve(model: str) -> Path:
    """A local directory as it is; anything else is a hub id, downloaded (or taken from the hub's cache).

    Raises:
        ConfigError: there is neither such a directory nor such a repository.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    check_model_name(model)
    from huggingface_hub import snapshot_download  # half a second, which a local directory need not wait for
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer*"]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"model {model!r} is neither a directory nor a repository that could be fetched: {error}"
        ) from error
