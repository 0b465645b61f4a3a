"""The one module that a process imports first: it keeps the process apart from the user's folder and proxy.

The packages of spectra-serve have common names such as ``app``. Ray's workers and ``serve run`` search the current
folder first, where a project may have an ``app`` of its own. Importing this module loads our packages from next to it,
and prepares the environment of this process and of those that it starts. Of our other modules, only ``spectra doctor``
reads values here.

It is the ``spectra`` command, a module that Ray's workers load before any task, and the import path for Serve:
``serve run spectra_serve:build_app model=...``, ``serve run spectra_serve:app``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application

HOME = Path(__file__).resolve().parent
PACKAGES = ("app", "deployments", "engine", "retrieval_store", "speculators")
PRELOADED = "RAY_preload_python_modules"  # Ray's workers import these modules before they search any job's folders
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
LOOPBACK = "localhost,127.0.0.1,::1"
ANY_ADDRESS = "0.0.0.0/0,::/0"  # gRPC understands networks; an HTTP library may not
IS_PRELOADED = __name__ in os.environ.get(PRELOADED, "").split(",")  # in the Ray that started this process
LONGEST_TEMPORARY = 32  # bytes; Ray appends up to 75 for a socket, whose path has at most 107


def load_packages() -> None:
    """Import our packages from this module's folder, whatever ``sys.path`` says; their modules then come from there.

    Raises:
        ImportError: this process has already imported another package of the same name.
    """
    for name in PACKAGES:
        if name in sys.modules:
            found = getattr(sys.modules[name], "__file__", None)
            if found is None or Path(found).resolve().parent != HOME / name:
                raise ImportError(
                    f"package {name} of spectra-serve is needed, but {found} is imported: import it later"
                )
            continue
        spec = PathFinder.find_spec(name, [str(HOME)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def prepare_environment(environment: MutableMapping[str, str]) -> None:
    """Change variables for this process and those that it starts.

    Ray loads this module in every worker. Calls to loopback use no proxy, nor do gRPC calls, which only go to the
    cluster. Sockets fit into the temporary folder. transformers logs errors only: we report a broken checkpoint in one
    sentence.
    """
    modules = environment.get(PRELOADED, "").split(",")
    environment[PRELOADED] = ",".join(filter(None, dict.fromkeys([*modules, __name__])))
    if any(environment.get(name) or environment.get(name.upper()) for name in PROXIES):
        without = environment.get("no_proxy") or environment.get("NO_PROXY", "")
        if without != "*":  # the only value that libraries understand as a whole
            without = _extended(without, LOOPBACK)
        environment["no_proxy"] = environment["NO_PROXY"] = without
        environment["no_grpc_proxy"] = _extended(environment.get("no_grpc_proxy", ""), f"{LOOPBACK},{ANY_ADDRESS}")
    environment.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if len(os.fsencode(environment.get("TMPDIR", ""))) > LONGEST_TEMPORARY and os.access("/tmp", os.W_OK):
        environment["TMPDIR"] = "/tmp"


def _shadowing_files() -> list[str]:
    """Return the paths of modules that ``sys.path`` finds in place of our packages."""
    specs = [PathFinder.find_spec(name, sys.path) for name in PACKAGES]
    found = [spec.origin or next(iter(spec.submodule_search_locations or ())) for spec in specs if spec is not None]
    return [path for path in found if Path(path).resolve().parent.parent != HOME]


def _is_in_ray() -> bool:
    import ray

    return bool(ray.is_initialized())


def _extended(given: str, more: str) -> str:
    """Two lists of hosts as one."""
    return ",".join(filter(None, dict.fromkeys(host.strip() for host in f"{given},{more}".split(","))))


def main() -> int:
    """Run the ``spectra`` command; return its exit status."""
    from app.cli import main as run

    return run()


def build_app(args: dict[str, Any]) -> Application:
    """Return the application of a configuration: ``app.builder.build_app``.

    Raises:
        ConfigError: the configuration is wrong, or Ray's workers would import other packages in place of ours.
    """
    from app.builder import build_app as build
    from engine.errors import ConfigError

    hidden = _shadowing_files()
    if hidden and not IS_PRELOADED and _is_in_ray():
        raise ConfigError(
            f"{' and '.join(hidden)} would be imported in place of spectra-serve in Ray's workers; start Ray with the "
            "environment that `spectra env` prints, or in another folder"
        )
    return build(args)


def __getattr__(name: str) -> Application:
    """Build the application with its defaults when ``app`` is read, as Serve does."""
    if name != "app":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return build_app({})


load_packages()
_given_tmpdir = os.environ.get("TMPDIR", "")
prepare_environment(os.environ)
UNUSED_TMPDIR = "" if os.environ.get("TMPDIR", "") == _given_tmpdir else _given_tmpdir  # replaced as too long; "": none
