"""The import paths by which Ray Serve finds the application."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build
from {module} import app
from {builder} import build_app
print(type(app).__name__, type(build(build_app, {{"model": "demo", "stages": "2"}})).__name__)
"""


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("module", "builder"), [("spectra_serve", "spectra_serve"), ("app.main", "app.builder")], ids=["top", "app"]
)
def test_import_paths_give_an_application(module: str, builder: str) -> None:
    """In a process of its own, because importing Serve is slow and warns."""
    code = CODE.format(module=module, builder=builder)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["Application", "Application"], done.stderr
