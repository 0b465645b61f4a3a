"""``spectra env``: prints the environment that every node of a cluster needs before its Ray starts."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from app.serving.haproxy import IN_IMAGE

WITHOUT_PROXY = ("no_proxy", "NO_PROXY", "no_grpc_proxy")  # spectra_serve extends them where a proxy is set
DESCRIPTION = """\
Print the variables by which Ray and Serve run spectra-serve. `spectra serve` sets them for a Ray of its own. Ray reads
them when it starts, so in a cluster every `ray start`, or every pod, needs them in its environment.

  eval "$(spectra env)" && ray start --head       on a machine
  spectra env --format k8s                        a container's `env`, as k8s/base/rayservice.yaml has it

Where a proxy is set, the lines for a shell also set `no_proxy`, so that calls within the cluster bypass it.

Set Ray's token yourself (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN); KubeRay sets it with `authOptions`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--format", choices=("sh", "k8s"), default="sh", help="lines for a shell, or YAML for a pod (default: sh)")
    says = f"path of the script that starts HAProxy (default: {IN_IMAGE}, as in the image)"
    add("--haproxy", type=Path, default=Path(IN_IMAGE), metavar="FILE", help=says)
    add("--install-haproxy", action="store_true", help="write that script as well")


def run(arguments: argparse.Namespace) -> int:
    import yaml

    from app.serving.environment import node_environment
    from app.serving.haproxy import write_node_script

    script = arguments.haproxy.absolute()
    if arguments.install_haproxy:
        write_node_script(script)
    values = node_environment(str(script))
    if arguments.format == "k8s":
        print(
            yaml.safe_dump([{"name": name, "value": value} for name, value in values.items()], sort_keys=False), end=""
        )
    else:
        values |= {name: os.environ[name] for name in WITHOUT_PROXY if name in os.environ}
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items()))
    return 0
