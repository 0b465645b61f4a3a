"""``spectra env``: the environment that every node of a cluster needs before its Ray starts."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from app.serving.haproxy import IN_IMAGE

WITHOUT_PROXY = ("no_proxy", "NO_PROXY", "no_grpc_proxy")  # extended as this process began, where a proxy is set
DESCRIPTION = """\
Show Ray's and Serve's switches of every node of a cluster. `spectra serve` sets them for a Ray of its own. Ray reads
them as it starts, so in a cluster they must be in the environment of every `ray start`, or of every pod.

  eval "$(spectra env)" && ray start --head       on a machine
  spectra env --format k8s                        a container's `env`, as k8s/base/rayservice.yaml has it

Where a proxy is set, the lines for a shell also set `no_proxy`, so that calls within the cluster bypass it.

It says nothing of Ray's token (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN), which KubeRay sets with `authOptions`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra env``."""
    add = parser.add_argument
    add("--format", choices=("sh", "k8s"), default="sh", help="lines for a shell, or YAML for a pod (default: sh)")
    add(
        "--haproxy",
        type=Path,
        default=Path(IN_IMAGE),
        metavar="FILE",
        help=f"where the script is that starts HAProxy (default: {IN_IMAGE}, as in the image)",
    )
    add("--install-haproxy", action="store_true", help="write that script, too")


def run(arguments: argparse.Namespace) -> int:
    """Print the variables; returns the exit status."""
    from app.serving.environment import node_environment
    from app.serving.haproxy import write_node_script

    script = arguments.haproxy.absolute()
    if arguments.install_haproxy:
        write_node_script(script)
    values = node_environment(str(script))
    if arguments.format == "k8s":
        print(_pod(values))
    else:
        print(_shell(values | {name: os.environ[name] for name in WITHOUT_PROXY if name in os.environ}))
    return 0


def _shell(values: Mapping[str, str]) -> str:
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())


def _pod(values: Mapping[str, str]) -> str:
    import yaml

    entries = [{"name": name, "value": value} for name, value in values.items()]
    return str(yaml.safe_dump(entries, sort_keys=False)).rstrip()
