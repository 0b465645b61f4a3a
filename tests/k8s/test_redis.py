"""A real Redis with the configuration and the users of the manifests, without TLS, which not every build has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from deployments.answers.log import DELETED, AnswerChange
from deployments.answers.redis_log import RedisAnswerLog
from retrieval_store.errors import StoreError, StoreUnavailableError
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


def test_redis_accepts_tls_alone_and_a_publisher_has_the_documented_rights() -> None:
    assert re.findall(r"^(?:tls-)?port .*$", redis_config(), re.MULTILINE) == ["port 0", "tls-port 6379"]
    manual = (FOLDER.parent / "docs/explanation/retrieval.md").read_text()
    (rights,) = re.findall(r"^ACL SETUSER spectra on >PASSWORD (.*)$", manual, re.MULTILINE)
    (given,) = re.findall(r"^user publisher on #\w+ (.*)$", redis_users(PASSWORD), re.MULTILINE)
    (answers,) = re.findall(r"^ANSWERS +(.*)$", manual, re.MULTILINE)
    assert given.endswith(answers)
    assert set(given.removesuffix(answers).split()) == set(rights.split())


@pytest.mark.cluster
def test_every_user_may_do_its_own_work_and_no_more(server: RedisServer) -> None:
    with server.client() as unnamed, pytest.raises(redis.AuthenticationError):
        unnamed.ping()
    with server.client(username="probe", password="any") as probe:
        assert probe.ping()
    with client(server, "ray") as ray, client(server, "exporter") as exporter, client(server, "backup") as backup:
        assert ray.hset("RAYns@KV", "a", "b") == 1
        assert exporter.config_get("appendonly") == {"appendonly": "yes"}
        assert exporter.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert backup.execute_command("REPLCONF", "capa", "eof") in (b"OK", True)
    for user, command in (
        ("probe", ("GET", "spectra:a")),
        ("ray", ("HGET", "spectra:{a}:current", "version")),
        ("publisher", ("HGET", "RAYns@KV", "a")),
        ("backup", ("GET", "a")),
        ("backup", ("KEYS", "*")),
        ("backup", ("CONFIG", "GET", "*")),
    ):
        with client(server, user) as denied, pytest.raises(redis.exceptions.NoPermissionError):
            denied.execute_command(*command)


@pytest.mark.cluster
@pytest.mark.parametrize("user", ["reader", "publisher"])
def test_servers_may_keep_answers(server: RedisServer, user: str) -> None:
    log = RedisAnswerLog(f"redis://{user}:{PASSWORD}@{HOST}:{server.port}", user, "one", 60.0)
    assert log.load() == []
    log.write([AnswerChange("a", {"record": b"1"}, 60.0), AnswerChange("b", {"record": b"2"}, DELETED)])
    assert log.load() == [{"record": b"1"}]
    log.close()
    with client(server, user) as denied, pytest.raises(redis.exceptions.NoPermissionError):
        denied.execute_command("SET", "spectra:{acme}:current", "x")


@pytest.mark.cluster
def test_a_publisher_publishes_and_a_reader_follows_without_writing(server: RedisServer, tmp_path: Path) -> None:
    version = make_snapshot(tmp_path / "made", 1)
    publisher, reader = (
        open_store(f"redis://{user}:{PASSWORD}@{HOST}:{server.port}", "acme") for user in ("publisher", "reader")
    )
    try:
        assert publisher.publish(tmp_path / "made") == version
        publisher.activate(version)
        publisher.append([[1, 2, 3]], 10)
        assert reader.current().version == version
        assert [one.version for one in reader.versions()] == [version]
        assert len(reader.history()) == len(reader.entries()) == 1
        reader.fetch(version, tmp_path / "fetched")
        assert (tmp_path / "fetched").is_dir()
        for write in (lambda: reader.append([[1]], 10), lambda: reader.rollback(), lambda: reader.retire(version)):
            with pytest.raises((StoreError, StoreUnavailableError)):
                write()
    finally:
        publisher.close()
        reader.close()
