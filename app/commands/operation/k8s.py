"""``spectra k8s``: renders manifests for Kubernetes."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Render manifests for Kubernetes with KubeRay. An overlay in k8s/overlays holds the differences from k8s/base, and a
serve-config.yaml with the configuration of the server.

  spectra k8s render --overlay cpu-demo | kubectl apply --server-side -f -
"""
RENDER = """\
Check the overlay's serve-config.yaml as `spectra check --elsewhere` does, render it with `kubectl kustomize`, check the
result against the rules of KubeRay, and print it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="k8s_command", required=True, metavar="COMMAND")
    render = commands.add_parser("render", help="check and print the manifests of an overlay", description=RENDER)
    add = render.add_argument
    add("--overlay", required=True, metavar="NAME", help="a folder of k8s/overlays")
    add("--folder", type=Path, default=Path("k8s"), metavar="DIR", help="folder of overlays and base (default: k8s)")
    render.set_defaults(run=_render)


def _render(arguments: argparse.Namespace) -> int:
    from app.serving.kubernetes.render import render

    print(render(arguments.folder, arguments.overlay), end="")
    return 0
