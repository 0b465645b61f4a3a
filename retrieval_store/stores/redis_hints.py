"""Listens to a namespace's channel in Redis. Callers poll as well: a lost connection misses hints."""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Event, Lock

import redis
from redis.client import PubSub
from redis.exceptions import RedisClusterException

from retrieval_store.stores.redis_client import RedisClient

_AGAIN = 0.5  # seconds between attempts to subscribe
_SLICE = 0.5  # seconds until a waiting thread notices that its store was closed
_ANSWER = 2.0  # seconds; timeout of a subscription
_LOST = (redis.RedisError, RedisClusterException, OSError)


class RedisHints:
    """A subscription that is renewed when its connection is lost; one thread at a time may wait."""

    def __init__(self, client: RedisClient, channel: str) -> None:
        self._client, self._channel = client, channel
        self._pubsub: PubSub | None = None
        self._next_attempt = 0.0
        self._waiting = Lock()
        self._closed = Event()

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        with self._waiting:
            while not self._closed.is_set():
                left = max(0.0, deadline - time.monotonic())
                try:
                    if self._subscribe(left) if self._pubsub is None else self._hear(self._pubsub, left):
                        return True
                except _LOST:
                    self._drop()
                if time.monotonic() >= deadline:
                    return False
        return False

    def _subscribe(self, left: float) -> bool:
        """Subscribe; return True, because changes before it were not heard."""
        pause = self._next_attempt - time.monotonic()
        if pause > 0:
            self._closed.wait(min(pause, left))
            return False
        self._next_attempt = time.monotonic() + _AGAIN
        self._pubsub = self._client.pubsub()
        self._pubsub.subscribe(self._channel)
        if self._pubsub.get_message(timeout=min(max(left, _SLICE), _ANSWER)) is None:
            raise redis.TimeoutError("no answer to SUBSCRIBE")
        return True

    def _hear(self, pubsub: PubSub, left: float) -> bool:
        if pubsub.get_message(timeout=min(left, _SLICE)) is None:
            return False
        while pubsub.get_message(timeout=0.0) is not None:
            pass
        return True

    def _drop(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(*_LOST):
                pubsub.close()

    def close(self) -> None:
        self._closed.set()
        with self._waiting:
            self._drop()
