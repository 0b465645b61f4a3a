"""Builds the library that requests look up, and the options of the retrieval service, from a configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.composition.operation import log_options
from app.config.serve import ServeConfig
from app.inputs.builtin_corpus import BUILTIN
from app.inputs.checked_checkpoints import spec_of
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.libraries import FLAG, LibraryAt, checked_place, hash_of, library_at
from app.inputs.models import target_name, texts_path
from app.inputs.stores import is_store, open_store_at
from deployments.credentials import credentials_set
from deployments.options import RetrievalOptions
from retrieval_store.index.index import FixedLibrary, Library
from retrieval_store.service.compaction import TargetVocabulary
from retrieval_store.service.learner import LiveOptions

COMPACT_FACTOR = 5  # a snapshot is built once the log holds this many times the live tokens that are looked up


def library(config: ServeConfig) -> LibraryAt | None:
    """Return what requests look up: by default the built-in snapshot for the default model, nothing for others.

    Raises ConfigError if there is nothing where ``retrieval`` points.
    """
    if config.retrieval is None and config.model == DEFAULT_MODEL:
        return LibraryAt(BUILTIN, target_name(config.model), is_optional=True)  # a server also starts without it
    return library_at(config.retrieval, target_name(config.model), revision=config.revision)


def watched_store(config: ServeConfig) -> str | None:
    """Return the URL or folder of the store that the retrieval service watches; "": one in memory; None: no service."""
    if config.retrieval is not None and is_store(config.retrieval):
        return checked_place(config.retrieval)
    return "" if config.live_namespaces else None


def retrieval_options(config: ServeConfig) -> RetrievalOptions | None:
    """Return the options of the retrieval service; None without a store to watch and without a learning namespace.

    Raises:
        ConfigError: the URL of the store is not valid.
        UnsupportedModelError: the model has no ``tokenizer.json``, whose hash identifies it to snapshots.
    """
    store = watched_store(config)
    if store is None:
        return None
    if store:
        open_store_at(store, config.retrieval_namespace, FLAG).close()  # checks the URL, connects to nothing
    path = texts_path(config.model, config.revision)
    cache = config.retrieval_cache or "served-snapshots"
    if config.retrieval_cache and not cache.startswith("~"):  # ~ is the home on the node that reads it
        cache = str(Path(cache).absolute())
    return RetrievalOptions(
        store=store,
        cache=cache,
        target=TargetVocabulary(hash_of(path), spec_of(path).vocab_size),
        namespace=config.retrieval_namespace,
        poll=config.retrieval_poll,
        grace=config.retrieval_grace,
        live=config.live_namespaces,
        credentials=credentials_set() if store else (),
        learning=LiveOptions(config.live_tokens, config.retrieval_poll, COMPACT_FACTOR * config.live_tokens),
        logs=log_options(config),
    )


def lookup(config: ServeConfig) -> Callable[[], Library] | None:
    """Return what builds the library that drafters read, apart from what a retrieval service adds to it.

    With a service there is a library, though it may be empty.
    """
    store = watched_store(config)
    found = None if store else library(config)
    return found or (None if store is None else FixedLibrary)
