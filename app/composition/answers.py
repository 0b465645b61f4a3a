"""Builds the options of the answer keeper from a configuration."""

from __future__ import annotations

from app.composition.operation import log_options
from app.composition.retrieval import watched_store
from app.config.serve import ServeConfig
from app.inputs.stores import DEFAULT_NAMESPACE, open_store_at
from deployments.credentials import credentials_set
from deployments.options import AnswerLimits, AnswerOptions
from engine.errors import ConfigError

MEBI = 1 << 20
REDIS = "redis"  # the beginning of every URL of one


def answer_options(config: ServeConfig) -> AnswerOptions | None:
    """Return limits and store of kept answers; None: this server keeps none.

    Raises ConfigError if ``answer_store`` is not the URL of a Redis.
    """
    store = config.answer_store or ""
    if not config.answers_per_tenant:
        if store:
            raise ConfigError("answer_store is given, but answers_per_tenant is 0: no answers are kept")
        return None
    if store:
        if not store.startswith(REDIS):
            raise ConfigError("answer_store is not the URL of a Redis; it must be one, as in redis://HOST:6379/1")
        open_store_at(store, DEFAULT_NAMESPACE, "--answer-store").close()  # checks the URL, connects to nothing
    elif (watched := watched_store(config) or "").startswith(REDIS):
        store = watched
    return AnswerOptions(
        limits=AnswerLimits(
            per_tenant=config.answers_per_tenant,
            bytes_per_tenant=int(config.answers_mib_per_tenant * MEBI),
            total_bytes=int(config.answers_mib * MEBI),
            keep_seconds=config.answer_expiry,
            unread_seconds=config.unread_seconds,
            longest_seconds=config.answer_seconds,
        ),
        store=store,
        name=config.served_name,
        grace=config.grace,
        credentials=credentials_set() if store else (),
        logs=log_options(config),
    )
