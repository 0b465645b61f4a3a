"""The endpoints of the pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.playground.examples import examples
from app.playground.files import HEADERS, PAGES, PREFIX, static_files
from app.playground.guard import Guard
from app.playground.options import PlaygroundOptions, Victim

Handler = Callable[[Request], Awaitable[Response]]
SETTINGS = PREFIX + "settings"
KILL = PREFIX + "kill/{victim:path}"
NOT_KEPT = HEADERS | {"Cache-Control": "no-store"}


class Killer(Protocol):
    """Kills processes of this server."""

    async def kill(self, part: str, place: int) -> int | None:
        """SIGKILL to a process; returns its id, or None if there is none now."""
        ...


class Playground:
    """The pages of one ingress replica.

    Args:
        killer: kills what the page for operators names; None: nothing may be killed.
    """

    def __init__(self, options: PlaygroundOptions, killer: Killer | None = None) -> None:
        self._options = options
        self._killer = killer
        self._guard = Guard()
        self._files = static_files()
        self._victims = {} if killer is None else {victim.name: victim for victim in options.victims}

    @property
    def open_paths(self) -> list[str]:
        """Paths that need no key: they hold nothing that is not in the package."""
        return [*self._files, SETTINGS]

    @property
    def routes(self) -> list[tuple[str, str, Handler]]:
        """Method, path and handler of every endpoint."""
        routes: list[tuple[str, str, Handler]] = [("GET", SETTINGS, self.settings)]
        if self._victims:
            routes.append(("POST", KILL, self.kill))
        return [*routes, *(("GET", path, self.page) for path in PAGES), ("GET", PREFIX + "{file:path}", self.page)]

    async def page(self, request: Request) -> Response:
        """GET of a page or one of its files."""
        file = self._files.get(request.url.path)
        if file is None:
            raise HTTPException(404, "there is no such file")
        return file.response(request)

    async def settings(self, request: Request) -> Response:
        """GET /playground/settings: examples; where processes may be killed, which, and the token that it takes."""
        is_default = self._options.is_default_model
        offered = examples(is_default_model=is_default)
        shown: dict[str, Any] = {"about_model": is_default, "examples": offered, "victims": [], "token": None}
        if self._victims and self._guard.may_know(request):
            shown |= {"victims": [*self._victims], "token": self._guard.token}
        return Response(msgspec.json.encode(shown), headers=NOT_KEPT, media_type="application/json")

    async def kill(self, request: Request) -> Response:
        """POST /playground/kill/{victim}: SIGKILL to a process of this server."""
        if self._killer is None or not self._guard.may_act(request):
            raise HTTPException(403, "only this server's own page, in a browser of this machine, may do that")
        victim: Victim | None = self._victims.get(request.path_params["victim"])
        if victim is None:
            raise HTTPException(404, f"there is no such process; there are {', '.join(self._victims)}")
        pid = await self._killer.kill(victim.part, victim.place)
        if pid is None:
            raise HTTPException(503, f"{victim.name} is not running at the moment")
        return Response(msgspec.json.encode({"pid": pid}), headers=NOT_KEPT, media_type="application/json")
