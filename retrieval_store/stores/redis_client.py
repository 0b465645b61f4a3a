"""The connection pool to a Redis server, to the primary of a Sentinel, or to a Cluster; translates its errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, cast

import redis
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    ClusterDownError,
    NoPermissionError,
    ReadOnlyError,
    RedisClusterException,
    TryAgainError,
)
from redis.retry import Retry
from redis.sentinel import Sentinel

from retrieval_store.errors import StoreAddressError, StoreError, StoreRightsError, StoreUnavailableError
from retrieval_store.stores.records import StoreOptions
from retrieval_store.stores.redis_url import PASSWORD, SENTINEL_PASSWORD, USERNAME, RedisAddress

Command: TypeAlias = str | bytes | int
# Errors, and beginnings of messages, of a server that is there but cannot answer now.
_AWAY = (ClusterDownError, ReadOnlyError, TryAgainError)
_BUSY = ("BUSY", "MASTERDOWN", "MISCONF", "NOREPLICAS", "UNBLOCKED")
_NO_RIGHT = ("NOPERM", "ACL failure", "executing the script can't")


class RedisClient:
    """Connects at the first call, and again after a failure, so a Redis that comes back is used. Thread-safe."""

    def __init__(self, address: RedisAddress, options: StoreOptions) -> None:
        self._address, self._options = address, options
        self._lock = threading.Lock()
        self._client: redis.Redis | RedisCluster | None = None
        self._sentinel: Sentinel | None = None
        if address.ca_file and not Path(address.ca_file).is_file():
            raise StoreAddressError(f"{address.shown}: there is no CA file {address.ca_file}; name one in PEM format")

    def call(self, *command: Command) -> Any:
        """Run a command and return its answer; retry it once on a new connection if the old one was dead.

        Raises:
            StoreUnavailableError: Redis is away, or refuses this user.
            StoreError: Redis refuses this command.
        """
        try:
            try:
                return self._execute(command)
            except redis.AuthenticationError:
                raise
            except redis.TimeoutError:  # once is long enough
                self._reset()
                raise
            except (redis.ConnectionError, RedisClusterException, ClusterDownError):
                self._reset()
                return self._execute(command)
        except (redis.RedisError, RedisClusterException, OSError) as error:
            raise self._translated(error) from error

    def run(self, script: str, keys: list[str], *arguments: Command) -> Any:
        """Run a Lua script; see ``call``."""
        return self.call("EVAL", script, len(keys), *keys, *arguments)

    def pubsub(self) -> PubSub:
        """Return a new subscriber, whose calls raise the errors of redis-py."""
        make = cast("Callable[[], PubSub]", self._connected().pubsub)
        return make()

    def close(self) -> None:
        """Close all connections; the next call connects again."""
        with self._lock:
            client, sentinel, self._client, self._sentinel = self._client, self._sentinel, None, None
        with suppress(redis.RedisError, RedisClusterException, OSError):
            if client is not None:
                client.close()
        for one in sentinel.sentinels if sentinel else []:
            with suppress(redis.RedisError, OSError):
                one.close()

    def _execute(self, command: tuple[Command, ...]) -> Any:
        execute: Callable[..., Any] = self._connected().execute_command
        return execute(*command)

    def _reset(self) -> None:
        if self._address.kind == "cluster":  # its map of nodes may be out of date
            self.close()

    def _connected(self) -> redis.Redis | RedisCluster:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> redis.Redis | RedisCluster:
        address, settings = self._address, self._settings()
        hosts = [(host.strip("[]"), port) for host, port in address.hosts]
        if address.kind == "cluster":
            node = cast("Callable[[str, int], ClusterNode]", ClusterNode)
            return RedisCluster(startup_nodes=[node(host, port) for host, port in hosts], **settings)
        settings["db"] = address.db
        if address.kind == "sentinel":
            return self._primary(hosts, settings)
        return redis.Redis(host=hosts[0][0], port=hosts[0][1], **settings)

    def _primary(self, hosts: list[tuple[str, int]], settings: dict[str, Any]) -> redis.Redis:
        address, watch = self._address, cast("Callable[..., Sentinel]", Sentinel)
        asked = {key: value for key, value in settings.items() if key != "db"}
        asked |= {"username": address.sentinel_username or None, "password": address.sentinel_password or None}
        self._sentinel = watch(hosts, sentinel_kwargs=asked, **settings)
        find: Callable[..., redis.Redis] = self._sentinel.master_for
        return find(address.service)

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "socket_connect_timeout": self._options.connect_seconds,
            "socket_timeout": self._options.read_seconds,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "driver_info": None,
            "username": self._address.username or None,
            "password": self._address.password or None,
        }
        if self._address.tls:
            settings |= {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
            settings |= {"ssl_ca_certs": self._address.ca_file or None}
        return settings

    def _translated(self, error: Exception) -> StoreError:
        text, where = str(error) or type(error).__name__, self._address.shown
        for secret in filter(None, (self._address.password, self._address.sentinel_password)):
            text = text.replace(secret, "***")
        if isinstance(error, NoPermissionError) or any(word in text for word in _NO_RIGHT):
            rule = "docs/explanation/retrieval.md has the ACL rule"
            return StoreRightsError(f"{where}: the user lacks a right: {text}; {rule}")
        if isinstance(error, redis.AuthenticationError) or "WRONGPASS" in text or "NOAUTH" in text:
            names = f"{USERNAME} and {PASSWORD}" + (f", {SENTINEL_PASSWORD}" * (self._address.kind == "sentinel"))
            return StoreUnavailableError(f"{where}: Redis refuses the user or password: {text}; check {names}")
        if "certificate verify failed" in text.lower().replace("_", " "):
            return StoreUnavailableError(f"{where}: the certificate is not trusted: {text}; name its CA with ?ca=FILE")
        if isinstance(error, redis.ResponseError) and not isinstance(error, _AWAY) and not text.startswith(_BUSY):
            return StoreError(f"{where}: Redis refuses: {text}")
        return StoreUnavailableError(f"{where}: Redis is not available: {text}")
