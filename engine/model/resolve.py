"""Where a model's files are."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from engine.errors import ConfigError

COMMIT = re.compile("[0-9a-f]{40}")
HUB_ID = re.compile(r"(?!.{97})[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
PINNED = re.compile(rf"({HUB_ID.pattern})@(\w[\w./-]{{0,127}})", re.ASCII)
TEXTS = ("*.json", "*.jinja", "tokenizer*")  # all that text and a plan need
WEIGHTS = ("*.safetensors",)


def check_model_name(model: str, revision: str | None = None) -> None:
    """Raises ConfigError if ``model`` is no directory and has not the form of a hub id either, or if it is a directory,
    which has no revisions; asks no hub."""
    if Path(model).expanduser().is_dir():
        if revision is not None:
            raise ConfigError(
                f"revision (--revision) is {revision!r}, but model {model!r} is a directory; revisions are the hub's"
            )
    elif not HUB_ID.fullmatch(model) and not PINNED.fullmatch(model):
        raise ConfigError(f"model {model!r} is neither a directory nor a hub id, as in Qwen/Qwen3-0.6B")


def revision_of(path: Path) -> str:
    """The commit of a snapshot in the hub's cache; "" for any other directory."""
    return path.name if path.parent.name == "snapshots" and COMMIT.fullmatch(path.name) else ""


def resolve(model: str, revision: str | None = None, weights: Collection[str] = WEIGHTS) -> Path:
    """A local directory as it is; anything else is a hub id, downloaded (or taken from the hub's cache).

    Args:
        model: directory or hub id, which may end in ``@REVISION``.
        revision: branch, tag or commit on the hub; None: its main branch as it is now.
        weights: names or patterns of the weight files that are wanted; empty: what text and a plan need alone.

    Raises:
        ConfigError: there is neither such a directory nor such a repository, or it lacks the revision.
    """
    check_model_name(model, revision)
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download  # half a second, which a local directory need not wait for
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, named = model.partition("@")
    revision = revision or named or None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*TEXTS, *weights]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError, RuntimeError) as error:
        # The library's threads may raise RuntimeError: the first that gives up closes the client of the others.
        what = f"model {name!r}" if revision is None else f"revision {revision!r} of model {name!r}"
        raise ConfigError(f"{what} is neither a directory nor a repository that could be fetched: {error}") from error


def pinned(model: str) -> str:
    """A hub id with the commit that it is at now, so that processes which fetch it later read the same; a directory as
    it is. Fetches no weights.

    Raises:
        ConfigError: as ``resolve``.
    """
    commit = revision_of(resolve(model, weights=()))
    return f"{model.partition('@')[0]}@{commit}" if commit and not Path(model).expanduser().is_dir() else model
