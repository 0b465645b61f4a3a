"""What the retrieval service of a server is told: the store it watches, whose tokens it serves, and who learns."""

from __future__ import annotations

from pathlib import Path

from app.config.serve import ServeConfig
from app.inputs.cache import cache_folder
from app.inputs.libraries import FLAG, hash_of
from app.inputs.stores import open_store_at
from deployments.options import RetrievalOptions
from engine.model.loader import load_spec
from engine.model.resolve import resolve
from retrieval_store.service.compaction import Target
from retrieval_store.service.learner import LiveOptions


def retrieval_options(config: ServeConfig) -> RetrievalOptions | None:
    """Options of the retrieval service; None when there is nothing to watch and nobody learns.

    Raises:
        ConfigError: the store's URL is none.
        UnsupportedModelError: the model's directory has no ``tokenizer.json``, by which snapshots know a tokenizer.
    """
    store = config.watched_store
    if store is None:
        return None
    if store:
        open_store_at(store, config.retrieval_namespace, FLAG).close()  # connects to nothing, but looks at the URL
    path = resolve(config.model_path)
    cache = cache_folder() / "served-snapshots" if config.retrieval_cache is None else Path(config.retrieval_cache)
    return RetrievalOptions(
        store=store,
        cache=str(cache.expanduser().resolve()),
        target=Target(hash_of(path), load_spec(path).vocab_size),
        namespace=config.retrieval_namespace,
        poll=config.retrieval_poll,
        live=config.live_namespaces,
        learning=LiveOptions(config.live_tokens, config.live_interval, config.live_compact_tokens),
    )
