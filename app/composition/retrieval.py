"""From a configuration to what requests look up, and to the retrieval service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.composition.operation import log_options
from app.config.serve import ServeConfig
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.libraries import FLAG, LibraryAt, builtin_library, checked_place, hash_of, library_at
from app.inputs.models import target_name, texts_path
from app.inputs.stores import is_store, open_store_at
from deployments.options import RetrievalOptions
from deployments.retrieval.environment import credentials_set
from retrieval_store.index.index import FixedLibrary, Library
from retrieval_store.service.compaction import TargetVocabulary
from retrieval_store.service.learner import LiveOptions


def library(config: ServeConfig) -> LibraryAt | None:
    """What requests look up; the default model has the built-in snapshot unless another is given.

    Raises:
        ConfigError: there is nothing where ``retrieval`` points.
    """
    if config.retrieval is None and config.model == DEFAULT_MODEL:
        return builtin_library(target_name(config.model))
    return library_at(config.retrieval, target_name(config.model), revision=config.revision)


def watched_store(config: ServeConfig) -> str | None:
    """URL or folder of the store that the retrieval service watches; "": one in memory; None: no service.

    Raises:
        ConfigError: the URL of the store is none.
    """
    if config.retrieval is not None and is_store(config.retrieval):
        return checked_place(config.retrieval)
    return "" if config.live_namespaces else None


def retrieval_options(config: ServeConfig) -> RetrievalOptions | None:
    """Options of the retrieval service; None without a store to watch and a namespace that learns. Reads the model.

    Raises:
        ConfigError: the store's URL is none.
        UnsupportedModelError: the model's directory has no ``tokenizer.json``, by which snapshots know a tokenizer.
    """
    store = watched_store(config)
    if store is None:
        return None
    from engine.model.loader import load_spec

    if store:
        open_store_at(store, config.retrieval_namespace, FLAG).close()  # connects to nothing, but looks at the URL
    path = texts_path(config.model, config.revision)
    cache = "served-snapshots" if config.retrieval_cache is None else config.retrieval_cache
    if config.retrieval_cache is not None and not cache.startswith("~"):  # which is the home on the node that reads it
        cache = str(Path(cache).absolute())
    return RetrievalOptions(
        store=store,
        cache=cache,
        target=TargetVocabulary(hash_of(path), load_spec(path).vocab_size),
        namespace=config.retrieval_namespace,
        poll=config.retrieval_poll,
        grace=config.retrieval_grace,
        live=config.live_namespaces,
        credentials=credentials_set() if store else (),
        learning=LiveOptions(config.live_tokens, config.live_interval, config.live_compact_tokens),
        logs=log_options(config),
    )


def lookup(config: ServeConfig) -> Callable[[], Library] | None:
    """What is looked up besides what the retrieval service has; where there is a service, at least nothing."""
    store = watched_store(config)
    if store:
        return FixedLibrary
    return library(config) or (FixedLibrary if store is not None else None)
