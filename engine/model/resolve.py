"""Where a model's files are."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from engine.errors import ConfigError


def resolve(model: str) -> Path:
    """A local directory as it is; anything else is a hub id, downloaded (or taken from the hub's cache).

    Raises:
        ConfigError: there is neither such a directory nor such a repository.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer*"]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"model {model!r} is neither a directory nor a repository that could be fetched: {error}"
        ) from error
