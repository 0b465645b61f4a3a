"""``spectra check``: errors in a Serve config file or a RayService."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from engine.errors import ConfigError

DESCRIPTION = """\
Check a Serve config file (for `serve deploy`) or a RayService before it is deployed. Ray ignores unknown options; this
command reports them, and wrong arguments of the application. Models and files named there must exist on this machine.
Exit status 1: there are errors.

  spectra check serve.yaml && serve deploy serve.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, nargs="?", metavar="FILE", help="Serve config file or RayService, YAML or JSON")
    add("--elsewhere", action="store_true", help="absolute paths exist on other machines: skip them")
    add("--schema", action="store_true", help="print the JSON schema of the application's args and exit")


def run(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        from app.config.serve import ServeConfig

        print(json.dumps(ServeConfig.model_json_schema(), indent=2))
        return 0
    if arguments.file is None:
        raise ConfigError("FILE is missing; name a Serve config file or a RayService, or give --schema")

    from app.serving.deploy_file import check_deploy_file

    wrong = check_deploy_file(arguments.file, elsewhere=arguments.elsewhere)
    for sentence in wrong:
        print(f"{arguments.file}: {sentence}", file=sys.stderr)
    if not wrong:
        print(f"{arguments.file}: no errors")
    return int(bool(wrong))
