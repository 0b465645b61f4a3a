"""Addresses of channels: what is written is read, of both versions of IP, and nothing else is taken for one."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.transport.addresses import listen, parse, tcp

PORTS = st.integers(0, 65535)


@given(st.ip_addresses(), PORTS)
def test_what_is_written_is_read(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    family, where = parse(tcp(str(ip), port))
    assert family == (socket.AF_INET if ip.version == 4 else socket.AF_INET6)
    assert where == (str(ip), port)


@given(st.ip_addresses(v=6), PORTS, st.from_regex(r"[a-z][a-z0-9.-]{0,12}", fullmatch=True))
def test_an_interface_may_be_named(ip: ipaddress.IPv6Address, port: int, interface: str) -> None:
    host = f"{ip.exploded}%{interface}"
    assert parse(tcp(host, port)) == (socket.AF_INET6, (host, port))


@given(st.from_regex(r"[a-zA-Z][a-zA-Z0-9-]{0,20}(\.[a-z]{1,9})*", fullmatch=True), PORTS)
def test_a_name_is_a_host_too(name: str, port: int) -> None:
    assert parse(f"tcp:{name}:{port}") == (socket.AF_INET, (name, port))


@given(st.text(st.characters(exclude_characters="\0"), min_size=1))
def test_a_path_is_taken_as_it_is(path: str) -> None:
    assert parse(f"unix:{path}") == (socket.AF_UNIX, path)


@given(st.text(max_size=40))
def test_any_other_text_is_refused_and_nothing_else_is_raised(rest: str) -> None:
    address = f"tcp:{rest}"
    try:
        _, where = parse(address)
    except ValueError:
        pass
    else:
        assert re.fullmatch(r"(\[.+\]|[^:]+):[0-9]{1,5}", rest)
        assert int(where[1]) <= 65535


@pytest.mark.parametrize("wrong", ["tcp:::1:80", "tcp:fd00::1:80", "tcp:[10.0.0.1]:80", "tcp:a:65536", "udp:a:1", "a"])
def test_an_address_without_brackets_is_not_guessed_at(wrong: str) -> None:
    with pytest.raises(ValueError, match="an IPv6 host in brackets"):
        parse(wrong)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_says_the_address_by_which_it_is_reached(host: str) -> None:
    server, address = listen(tcp(host))
    family, where = parse(address)
    with server, socket.socket(family, socket.SOCK_STREAM) as peer:
        peer.connect(where)
        with server.accept()[0] as accepted:
            assert accepted.getsockname()[:2] == where
    assert where[0] == host


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        server, address = listen(f"unix:{tmp_path}/s")
        assert address == f"unix:{tmp_path}/s"
        server.close()
