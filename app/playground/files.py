"""The pages' files: read once, and sent with a validator and a policy that lets them ask nothing but their server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

STATIC = Path(__file__).parent / "static"
PREFIX = "/playground/"  # of all files but the pages
PAGES = {"/": "index.html", "/operator": "operator.html"}
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Cache-Control": "no-cache",  # kept, and asked about every time: a server may have another version tomorrow
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file as it is sent."""

    content: bytes
    media_type: str
    etag: str

    @staticmethod
    def read(path: Path) -> StaticFile:
        """From the package."""
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
