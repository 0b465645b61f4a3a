"""Redis URLs are read and shown without a password; wrong ones are refused with the right form."""

from __future__ import annotations

import pytest

from retrieval_store.errors import StoreAddressError
from retrieval_store.stores.open import open_store, shown
from retrieval_store.stores.redis_url import RedisAddress, parse_redis_url

# URL: what is shown of it, kind, TLS, hosts, and other fields.
GOOD = {
    "redis://localhost": ("redis://localhost:6379/0", "", False, [("localhost", 6379)], {}),
    "redis://h:1/15": ("redis://h:1/15", "", False, [("h", 1)], {"db": 15}),
    "redis://[::1]:7/2": ("redis://[::1]:7/2", "", False, [("[::1]", 7)], {"db": 2}),
    "redis://me:p%40ss@h:1": ("redis://me@h:1/0", "", False, [("h", 1)], {"username": "me", "password": "p@ss"}),
    "redis://:word@h:1": ("redis://h:1/0", "", False, [("h", 1)], {"password": "word"}),
    "redis://me:a@b:c@h:1": ("redis://me@h:1/0", "", False, [("h", 1)], {"username": "me", "password": "a@b:c"}),
    "rediss://h?ca=/x@y/ca.pem": (
        "rediss://h:6379/0?ca=/x%40y/ca.pem",
        *("", True, [("h", 6379)], {"ca_file": "/x@y/ca.pem"}),
    ),
    "redis+sentinel://a,b:2/main": (
        "redis+sentinel://a:26379,b:2/main/0",
        *("sentinel", False, [("a", 26379), ("b", 2)], {"service": "main"}),
    ),
    "rediss+sentinel://me@a/main/3": (
        "rediss+sentinel://me@a:26379/main/3",
        *("sentinel", True, [("a", 26379)], {"db": 3, "service": "main", "username": "me"}),
    ),
    "redis+cluster://a:1,b": ("redis+cluster://a:1,b:6379", "cluster", False, [("a", 1), ("b", 6379)], {}),
    "rediss+cluster://a/0": ("rediss+cluster://a:6379", "cluster", True, [("a", 6379)], {}),
}
BAD = {
    "redis://": "host",
    "redis://h:99999": "port",
    "redis://h:port": "port",
    "redis://a,b": "only one is allowed",
    "redis://h/name": "database",
    "redis://h/-1": "database",
    "redis://h?db=1": "?ca=FILE",
    "redis://h?ca=x": "rediss",
    "redis://h#x": "forms",
    "redis+other://h": "forms",
    "redis+sentinel://h": "service",
    "redis+cluster://h/1": "database 0",
    "redis:h": "forms",
}


def test_a_url_is_read_and_shown_without_its_password() -> None:
    for url, (safe, kind, tls, hosts, more) in GOOD.items():
        address = parse_redis_url(url, {})
        assert address == RedisAddress(kind, tls, tuple(hosts), **more)  # type: ignore[arg-type]
        assert address.shown == shown(url) == safe


@pytest.mark.parametrize("url", BAD)
def test_a_wrong_url_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(StoreAddressError) as caught:
        parse_redis_url(url, {})
    assert BAD[url] in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:hidden@",
        "redis://me:hidden@h:port",
        "redis://me:hidden/x@h/y",
        "redis://me:hidden?x@h",
        "redis://me:x@hidden@h:port",
        "redis://h?password=hidden",
        "redis://h:port?x=hidden",
        "redis+wrong://me:hidden@h",
        "http://me:hidden@h",
        "file://me:hidden@h/x",
    ],
)
def test_no_message_shows_a_password(url: str) -> None:
    with pytest.raises(StoreAddressError) as caught:
        open_store(url, "space")
    assert "hidden" not in str(caught.value)
    assert "hidden" not in shown(url)


def test_the_environment_completes_the_url() -> None:
    environment = {
        "SPECTRA_REDIS_USERNAME": "user",
        "SPECTRA_REDIS_PASSWORD": "secret",
        "SPECTRA_REDIS_SENTINEL_USERNAME": "watcher",
        "SPECTRA_REDIS_SENTINEL_PASSWORD": "other",
    }
    address = parse_redis_url("redis+sentinel://h/main", environment)
    assert (address.username, address.password) == ("user", "secret")
    assert (address.sentinel_username, address.sentinel_password) == ("watcher", "other")
    assert parse_redis_url("redis://me@h", environment).username == "me"
    assert parse_redis_url("redis://me:mine@h", environment).password == "mine"
    assert "secret" not in repr(address)
    assert "other" not in repr(address)
