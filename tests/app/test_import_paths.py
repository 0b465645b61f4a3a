"""The two import paths by which Ray Serve finds the application."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build
from spectra_serve import app, build_app
print(type(app).__name__, type(build(build_app, {"model": "demo", "stages": "2"})).__name__)
"""


@pytest.mark.cluster
def test_both_import_paths_give_an_application() -> None:
    """In a process of its own, because importing Serve is slow and warns."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.stdout.split() == ["Application", "Application"], done.stderr
