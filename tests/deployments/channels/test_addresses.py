"""Addresses of channels, of both versions of IP, are parsed as they were written; any other text is refused."""

from __future__ import annotations

import ipaddress
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.channels.addresses import listen, parse, tcp

PORTS = st.integers(0, 65535)


@given(st.ip_addresses(), PORTS)
def test_an_ip_address_is_parsed_as_it_was_written(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    family, where = parse(tcp(str(ip), port))
    assert family == (socket.AF_INET if ip.version == 4 else socket.AF_INET6)
    assert where == (str(ip), port)


@given(
    st.from_regex(r"[a-zA-Z][a-zA-Z0-9-]{0,20}(\.[a-z]{1,9})*", fullmatch=True),
    PORTS,
    st.text(st.characters(exclude_characters="\0"), min_size=1),
)
def test_an_interface_a_host_name_and_any_path_are_parsed(name: str, port: int, path: str) -> None:
    assert parse(tcp(f"fe80::1%{name}", port)) == (socket.AF_INET6, (f"fe80::1%{name}", port))
    assert parse(f"tcp:{name}:{port}") == (socket.AF_INET, (name, port))
    assert parse(f"unix:{path}") == (socket.AF_UNIX, path)


@given(st.text(max_size=40))
def test_any_other_text_is_refused_with_a_value_error(rest: str) -> None:
    try:
        _, where = parse(f"tcp:{rest}")
    except ValueError:
        return
    assert re.fullmatch(r"(\[.+\]|[^:]+):[0-9]{1,5}", rest)
    assert int(where[1]) <= 65535


def test_an_ip_v6_address_without_brackets_is_refused() -> None:
    for wrong in ("tcp:::1:80", "tcp:fd00::1:80", "tcp:[10.0.0.1]:80", "tcp:a:65536", "udp:a:1", "a"):
        with pytest.raises(ValueError, match="an IPv6 host in brackets"):
            parse(wrong)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_returns_the_address_by_which_it_is_reached(host: str) -> None:
    server, address = listen(tcp(host))
    family, where = parse(address)
    with server, socket.socket(family, socket.SOCK_STREAM) as peer:
        peer.connect(where)
        with server.accept()[0] as accepted:
            assert accepted.getsockname()[:2] == where
    assert where[0] == host
