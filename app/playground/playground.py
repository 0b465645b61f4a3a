"""The pages for people: their files, and their endpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.playground.examples import GENERIC, OF_DEFAULT_MODEL
from app.playground.guard import Guard
from app.playground.options import PlaygroundOptions

Handler = Callable[[Request], Awaitable[Response]]
Kill = Callable[[str, int], Awaitable[int | None]]  # part and place of a process -> its id; None: it is not running
STATIC = Path(__file__).parent / "static"
PREFIX = "/playground/"  # of all files but the pages
PAGES = {"/": "index.html", "/operator": "operator.html"}
SETTINGS = PREFIX + "settings"
KILL = PREFIX + "kill/{victim:path}"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Cache-Control": "no-cache",  # kept, and validated every time: a restarted server may have another version
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
NOT_KEPT = HEADERS | {"Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file as it is sent."""

    content: bytes
    media_type: str
    etag: str

    @staticmethod
    def read(path: Path) -> StaticFile:
        content = path.read_bytes()
        return StaticFile(content, TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    def response(self, request: Request) -> Response:
        """The file, or 304 if the browser has it."""
        headers = HEADERS | {"ETag": self.etag}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if self.etag in known:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def static_files() -> dict[str, StaticFile]:
    """All files by the path at which they are served."""
    pages = {path: StaticFile.read(STATIC / name) for path, name in PAGES.items()}
    others = (path for path in STATIC.rglob("*") if path.suffix in TYPES and path.name not in PAGES.values())
    return pages | {PREFIX + path.relative_to(STATIC).as_posix(): StaticFile.read(path) for path in others}


class Playground:
    """The pages of one ingress replica; ``kill`` sends SIGKILL, None: nothing may be killed."""

    def __init__(self, options: PlaygroundOptions, kill: Kill | None = None) -> None:
        self._is_default_model = options.is_default_model
        self._keeps_answers = options.keeps_answers
        self._kill = kill
        self._guard = Guard()
        self._files = static_files()
        self._victims = {} if kill is None else {victim.name: victim for victim in options.victims}

    @property
    def open_paths(self) -> list[str]:
        """Paths that need no key, because all that they serve is in the package."""
        return [*self._files, SETTINGS]

    @property
    def routes(self) -> list[tuple[str, str, Handler]]:
        routes: list[tuple[str, str, Handler]] = [("GET", SETTINGS, self.settings)]
        if self._victims:
            routes.append(("POST", KILL, self.kill))
        return [*routes, *(("GET", path, self.page) for path in PAGES), ("GET", PREFIX + "{file:path}", self.page)]

    async def page(self, request: Request) -> Response:
        file = self._files.get(request.url.path)
        if file is None:
            raise HTTPException(404, "there is no such file")
        return file.response(request)

    async def settings(self, request: Request) -> Response:
        """GET /playground/settings: the examples, the processes that may be killed, and the token that this takes."""
        is_default = self._is_default_model
        examples = OF_DEFAULT_MODEL if is_default else GENERIC
        shown: dict[str, Any] = {
            "about_model": is_default,
            "examples": examples,
            "keeps_answers": self._keeps_answers,
            "victims": [],
            "token": None,
        }
        if self._victims and self._guard.may_know(request):
            shown |= {"victims": [*self._victims], "token": self._guard.token}
        return _not_kept(shown)

    async def kill(self, request: Request) -> Response:
        """POST /playground/kill/{victim}: SIGKILL to a process of this server."""
        if self._kill is None or not self._guard.may_act(request):
            raise HTTPException(403, "only this server's own page, in a browser of this machine, may do that")
        victim = self._victims.get(request.path_params["victim"])
        if victim is None:
            raise HTTPException(404, f"there is no such process; there are {', '.join(self._victims)}")
        pid = await self._kill(victim.part, victim.place)
        if pid is None:
            raise HTTPException(503, f"{victim.name} is not running at the moment")
        return _not_kept({"pid": pid})


def _not_kept(fields: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(fields), headers=NOT_KEPT, media_type="application/json")
