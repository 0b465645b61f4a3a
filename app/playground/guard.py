"""Decides who may kill a process: only a page of this server, in a browser of this machine."""

from __future__ import annotations

import hmac
import secrets
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request

TOKEN_HEADER = "x-playground-token"
SAME_SITE = (None, "none", "same-origin")  # values of Sec-Fetch-Site of a page's own requests


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own; no name is looked up."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Recognises requests of this server's own page; ``token`` is the secret of one process."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)

    def may_know(self, request: Request) -> bool:
        """Whether a request may see the token.

        Its peer and all proxies' peers are on loopback; its Host is a loopback name, which a page that points its own
        name here (DNS rebinding) lacks; and the browser reports no other page as the origin.
        """
        peers = [] if request.client is None else [request.client.host]
        for given in request.headers.getlist("x-forwarded-for"):
            peers += [peer.strip() for peer in given.split(",")]
        hosts = request.headers.getlist("host")
        return (
            bool(peers)
            and all(map(is_loopback, peers))
            and "forwarded" not in request.headers
            and len(hosts) == 1
            and is_loopback(_name(hosts[0]))
            and request.headers.get("sec-fetch-site") in SAME_SITE
        )

    def may_act(self, request: Request) -> bool:
        """Whether a request may kill a process: its Origin is also this server, and it has the token."""
        given = request.headers.get(TOKEN_HEADER, "")
        origin = f"{request.url.scheme}://{request.headers.get('host')}"
        return (
            self.may_know(request)
            and request.headers.getlist("origin") == [origin]
            and hmac.compare_digest(given.encode(), self.token.encode())
        )


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
