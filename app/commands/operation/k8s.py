"""``spectra k8s``: manifests for Kubernetes."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.errors import ConfigError

DESCRIPTION = """\
Manifests for Kubernetes with KubeRay. An overlay in k8s/overlays says what differs from k8s/base; its serve-config.yaml
says what is served.

  spectra k8s render --overlay cpu-demo | kubectl apply --server-side -f -
"""
RENDER = """\
Check the overlay's serve-config.yaml (as `spectra check` does, but for paths, which are those of the pods), let
`kubectl kustomize` put everything together, and show the manifests.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra k8s``."""
    commands = parser.add_subparsers(dest="k8s_command", required=True, metavar="COMMAND")
    render = commands.add_parser("render", help="check and show the manifests of an overlay", description=RENDER)
    render.add_argument("--overlay", required=True, metavar="NAME", help="a folder of k8s/overlays")
    render.add_argument(
        "--folder", type=Path, default=Path("k8s"), metavar="DIR", help="where overlays and base are (default: k8s)"
    )
    render.add_argument("--output", type=Path, metavar="FILE", help="write the manifests there instead of showing them")
    render.set_defaults(run=_render)


def _render(arguments: argparse.Namespace) -> int:
    from app.serving.kubernetes.render import render

    text = render(arguments.folder, arguments.overlay)
    if arguments.output is None:
        print(text, end="")
        return 0
    try:
        arguments.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {arguments.output}: {error.strerror}") from error
    return 0
