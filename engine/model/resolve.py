"""Finds or fetches a model's files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from engine.errors import ConfigError

COMMIT = re.compile("[0-9a-f]{40}")
HUB_ID = re.compile(r"(?!.{97})[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
PINNED = re.compile(rf"({HUB_ID.pattern})@(\w[\w./-]{{0,127}})", re.ASCII)
TEXTS = ("*.json", "*.jinja", "tokenizer*")  # config and tokenizer
WEIGHTS = ("*.safetensors",)
GGUF = ".gguf"
HUB_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")  # that the hub's client reads for https://


def check_model_name(model: str, revision: str | None = None) -> None:
    """Check a model's name without asking the hub.

    Raises:
        ConfigError: ``model`` is no directory, no GGUF file and no valid hub id, or a directory or file has a revision.
    """
    if is_local(model):
        if revision is not None:
            kind = "file" if is_gguf(model) else "directory"
            raise ConfigError(
                f"revision (--revision) is {revision!r}, but model {model!r} is a {kind}; revisions are the hub's"
            )
    elif model.endswith(GGUF):
        raise ConfigError(f"model {model!r} is not a file; a name that ends in {GGUF} must be the path of a file")
    elif not HUB_ID.fullmatch(model) and not PINNED.fullmatch(model):
        raise ConfigError(
            f"model {model!r} is neither a directory nor a {GGUF} file nor a hub id, as in Qwen/Qwen3-0.6B"
        )


def is_gguf(model: str) -> bool:
    """Return whether a model is an existing GGUF file."""
    return model.endswith(GGUF) and Path(model).expanduser().is_file()


def is_local(model: str) -> bool:
    """Return whether a model is an existing directory or GGUF file."""
    return is_gguf(model) or Path(model).expanduser().is_dir()


def revision_of(path: Path) -> str:
    """Return the commit of a snapshot in the hub's cache; "" for any other directory."""
    return path.name if path.parent.name == "snapshots" and COMMIT.fullmatch(path.name) else ""


def resolve(model: str, revision: str | None = None, weights: Collection[str] = WEIGHTS) -> Path:
    """Return the directory of a model.

    A GGUF file is converted into a folder in the user's cache. A hub id is downloaded, unless it is in the hub's cache.

    Args:
        model: directory, GGUF file or hub id, which may end in ``@REVISION``.
        revision: branch, tag or commit on the hub; None: the current main branch.
        weights: names or patterns of the weight files to fetch; empty: only config and tokenizer.

    Raises:
        ConfigError: there is no such directory, repository or revision, or the folder of a GGUF file cannot be written.
        UnsupportedModelError: a GGUF file cannot be read, or is not supported.
    """
    check_model_name(model, revision)
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if is_gguf(model):
        from engine.model.gguf.folder import checkpoint_folder  # imports NumPy and more

        return checkpoint_folder(path)
    from huggingface_hub import snapshot_download  # takes half a second
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, named = model.partition("@")
    revision = revision or named or None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*TEXTS, *weights]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError, RuntimeError) as error:
        # The library's threads may raise RuntimeError: the first that gives up closes the client of the others.
        what = f"model {name!r}" if revision is None else f"revision {revision!r} of model {name!r}"
        from engine.model.checkpoint_files import reason_of  # imports tokenizers

        is_unreachable = isinstance(error, LocalEntryNotFoundError)
        reason = reason_of((error.__cause__ if is_unreachable else None) or error)
        proxy = next((name for name in HUB_PROXIES if os.environ.get(name)), None) if is_unreachable else None
        setting = f" ({proxy} is set)" if proxy else ""
        raise ConfigError(
            f"{what} is neither a directory nor a repository that could be fetched{setting}: {reason}"
        ) from error


def pinned(model: str) -> str:
    """Return a hub id with its current commit, so processes that fetch it later read the same; fetches no weights.

    A directory or file is returned unchanged.

    Raises:
        ConfigError: as ``resolve``.
    """
    if is_local(model):
        return model
    commit = revision_of(resolve(model, weights=()))
    return f"{model.partition('@')[0]}@{commit}" if commit else model
