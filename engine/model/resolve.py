"""Where a model's files are."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from engine.errors import ConfigError

COMMIT = re.compile("[0-9a-f]{40}")
HUB_ID = re.compile(r"(?!.{97})[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
PINNED = re.compile(rf"({HUB_ID.pattern})@(\w[\w./-]{{0,127}})", re.ASCII)
TEXTS = ("*.json", "*.jinja", "tokenizer*")  # all that text and a plan need
WEIGHTS = ("*.safetensors",)
GGUF = ".gguf"
HUB_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")  # those that the hub's client reads for https://


def check_model_name(model: str, revision: str | None = None) -> None:
    """Asks no hub.

    Raises:
        ConfigError: ``model`` is neither a directory nor a GGUF file nor has the form of a hub id; or it is a directory
            or file, which have no revisions.
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
    """Whether a model is a GGUF file of this machine."""
    return model.endswith(GGUF) and Path(model).expanduser().is_file()


def is_local(model: str) -> bool:
    """Whether a model is a directory or a GGUF file of this machine."""
    return is_gguf(model) or Path(model).expanduser().is_dir()


def revision_of(path: Path) -> str:
    """The commit of a snapshot in the hub's cache; "" for any other directory."""
    return path.name if path.parent.name == "snapshots" and COMMIT.fullmatch(path.name) else ""


def resolve(model: str, revision: str | None = None, weights: Collection[str] = WEIGHTS) -> Path:
    """A local directory as it is; for a GGUF file a folder in the user's cache, which is written the first time;
    anything else is a hub id, downloaded (or taken from the hub's cache).

    Args:
        model: directory, GGUF file or hub id, which may end in ``@REVISION``.
        revision: branch, tag or commit on the hub; None: its main branch as it is now.
        weights: names or patterns of the weight files that are wanted; empty: what text and a plan need alone.

    Raises:
        ConfigError: there is neither such a directory nor such a repository, or it lacks the revision, or the folder
            for a GGUF file cannot be written.
        UnsupportedModelError: a GGUF file cannot be read, or is of a kind that is not supported.
    """
    check_model_name(model, revision)
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if is_gguf(model):
        from engine.model.gguf.folder import checkpoint_folder  # loads NumPy and more

        return checkpoint_folder(path)
    from huggingface_hub import snapshot_download  # half a second, which a local directory need not wait for
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, named = model.partition("@")
    revision = revision or named or None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*TEXTS, *weights]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError, RuntimeError) as error:
        # The library's threads may raise RuntimeError: the first that gives up closes the client of the others.
        what = f"model {name!r}" if revision is None else f"revision {revision!r} of model {name!r}"
        from engine.model.checkpoint_files import reason_of  # loads tokenizers

        is_unreachable = isinstance(error, LocalEntryNotFoundError)
        reason = reason_of((error.__cause__ if is_unreachable else None) or error)
        proxy = next((name for name in HUB_PROXIES if os.environ.get(name)), None) if is_unreachable else None
        setting = f" ({proxy} is set)" if proxy else ""
        raise ConfigError(
            f"{what} is neither a directory nor a repository that could be fetched{setting}: {reason}"
        ) from error


def pinned(model: str) -> str:
    """A hub id with the commit that it is at now, so that processes which fetch it later read the same; a directory or
    file as it is. Fetches no weights.

    Raises:
        ConfigError: as ``resolve``.
    """
    if is_local(model):
        return model
    commit = revision_of(resolve(model, weights=()))
    return f"{model.partition('@')[0]}@{commit}" if commit else model
