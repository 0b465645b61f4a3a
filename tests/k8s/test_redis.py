"""Redis with the configuration and the users of the manifests: a real one, without TLS, which not every build has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from retrieval_store.errors import StoreError, StoreUnavailableError
from retrieval_store.stores.base import Store
from retrieval_store.stores.open import open_store
from tests.support.manifests import FOLDER, redis_config, redis_users
from tests.support.redis_server import HOST, RedisServer
from tests.support.snapshot_folders import make_snapshot

PASSWORD = "s3cret-of-all"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    users = tmp_path_factory.mktemp("users") / "users.acl"
    users.write_text(redis_users(PASSWORD))
    lines = [line for line in redis_config().split("\n") if not line.startswith(("tls-", "port", "aclfile", "dir"))]
    config = "\n".join([*lines, "port {port}", f"bind {HOST}", f"aclfile {users}"])
    with RedisServer(config=config) as running:
        yield running


def client(server: RedisServer, user: str) -> redis.Redis:
    return server.client(username=user, password=PASSWORD)


def store(server: RedisServer, user: str) -> Store:
    return open_store(f"redis://{user}:{PASSWORD}@{HOST}:{server.port}", "acme")


def test_it_keeps_everything_and_evicts_nothing(server: RedisServer) -> None:
    with client(server, "exporter") as exporter:
        assert exporter.config_get("appendonly") == {"appendonly": "yes"}
        assert exporter.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_it_listens_for_tls_alone() -> None:
    assert re.findall(r"^(?:tls-)?port .*$", redis_config(), re.MULTILINE) == ["port 0", "tls-port 6379"]


def test_a_client_without_a_name_may_do_nothing_and_probes_may_ping(server: RedisServer) -> None:
    with server.client() as unnamed, pytest.raises(redis.AuthenticationError):
        unnamed.ping()
    with server.client(username="probe", password="any") as probe:
        assert probe.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            probe.get("spectra:a")


def test_a_publisher_publishes_and_a_reader_follows_and_no_more(server: RedisServer, tmp_path: Path) -> None:
    version = make_snapshot(tmp_path / "made", 1)
    publisher, reader = store(server, "publisher"), store(server, "reader")
    try:
        assert publisher.publish(tmp_path / "made") == version
        publisher.activate(version)
        publisher.append([[1, 2, 3]], 10)
        assert reader.current().version == version
        assert [one.version for one in reader.versions()] == [version]
        assert len(reader.history()) == 1
        assert len(reader.entries()) == 1
        reader.fetch(version, tmp_path / "fetched")
        assert (tmp_path / "fetched").is_dir()
        reader.wait(0.1)
        for write in (lambda: reader.append([[1]], 10), lambda: reader.rollback(), lambda: reader.retire(version)):
            with pytest.raises((StoreError, StoreUnavailableError)):
                write()
    finally:
        publisher.close()
        reader.close()


def test_users_have_only_their_own_keys(server: RedisServer) -> None:
    with client(server, "ray") as ray, client(server, "publisher") as publisher:
        assert ray.hset("RAYns@KV", "a", "b") == 1
        for denied in (lambda: ray.hget("spectra:{a}:current", "version"), lambda: publisher.hget("RAYns@KV", "a")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                denied()


def test_a_backup_can_be_made_and_nothing_else_be_read(server: RedisServer) -> None:
    with client(server, "backup") as backup:
        assert backup.execute_command("REPLCONF", "capa", "eof") in (b"OK", True)
        for command in (("GET", "a"), ("KEYS", "*"), ("CONFIG", "GET", "*")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                backup.execute_command(*command)


def test_a_publisher_has_the_rights_that_the_documents_give(server: RedisServer) -> None:
    (rights,) = re.findall(
        r"^ACL SETUSER spectra on >PASSWORD (.*)$", (FOLDER.parent / "docs/stores.md").read_text(), re.M
    )
    (given,) = re.findall(r"^user publisher on #\w+ (.*)$", redis_users(PASSWORD), re.MULTILINE)
    assert set(given.split()) == set(rights.split())
