"""``spectra check``: what is misspelt in a Serve config file or a RayService."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DESCRIPTION = """\
Look a Serve config file (for `serve deploy`) or a RayService over before it is deployed. Ray drops options that it does
not know without a word, and so does a RayService; this names them, and what is wrong in the arguments of the
application; models and files that these name are looked for on this machine. Exit status 1: something is wrong.

  spectra check serve.yaml && serve deploy serve.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra check``."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a Serve config file or a RayService, in YAML or JSON")
    parser.add_argument(
        "--elsewhere", action="store_true", help="absolute paths are those of other machines: do not look for them here"
    )


def run(arguments: argparse.Namespace) -> int:
    """Check and report; returns the exit status."""
    from app.serving.deploy_file import check_deploy_file

    wrong = check_deploy_file(arguments.file, elsewhere=arguments.elsewhere)
    for sentence in wrong:
        print(f"{arguments.file}: {sentence}", file=sys.stderr)
    if not wrong:
        print(f"{arguments.file}: nothing is unknown or wrong")
    return int(bool(wrong))
