"""How other processes of this machine join the Ray of a server, to call its application by handles."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from app.serving.certificates import write_private

NAMES = (
    # Without it Ray would look for a cluster at 127.0.0.1 under this machine's other address, for two minutes.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_USE_TLS",
    "RAY_TLS_SERVER_CERT",
    "RAY_TLS_SERVER_KEY",
    "RAY_TLS_CA_CERT",
)


def write_environment(folder: Path, address: str) -> Path:
    """Write what a process needs in its environment to join this process's Ray, as a file for ``.`` of a shell that
    this user alone can read: it holds Ray's token.

    Args:
        folder: of the server.
        address: of the Ray, ``HOST:PORT``.
    """
    values = {"RAY_ADDRESS": address} | {name: os.environ[name] for name in NAMES if name in os.environ}
    path = folder / "ray.env"
    write_private(path, "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items()).encode())
    return path
