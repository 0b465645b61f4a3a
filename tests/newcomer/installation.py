"""Environments with the wheel of this checkout, or with packages of an index."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = ("spectra_serve.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")
PATIENCE_S = 600.0  # a program that still runs then hangs


def packages() -> list[Path]:
    """Return the folders of the wheel's packages."""
    return [path.parent for path in sorted(ROOT.glob("*/py.typed"))]


def build_sdist(folder: Path) -> Path:
    """Build a source distribution of the checkout, from a copy because setuptools writes into its sources."""
    source = folder / "source"
    for package in packages():
        shutil.copytree(package, source / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source)
    code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    output_of(sys.executable, "-c", code, folder, folder=source)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def build_wheel(folder: Path) -> Path:
    """Build a wheel from a source distribution, as ``python -m build`` does, without downloads."""
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(build_sdist(folder)))
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment(folder: Path) -> Path:
    """Make an environment that falls back to this process's packages; return its Python."""
    venv.EnvBuilder(symlinks=True, clear=True).create(folder)
    library = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    dependencies = [path for path in sys.path if Path(path).name == "site-packages"]
    (library / "dependencies.pth").write_text("".join(f"{path}\n" for path in dependencies))
    return folder / "bin" / "python"


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel into a new environment; return its ``spectra``."""
    python = environment(folder)
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    return python.with_name("spectra")


def pip(*arguments: str) -> None:
    output_of(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def output_of(*command: object, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Return what a command prints; fail with all its output if it ends with an error, or not within ``PATIENCE_S``."""
    pipe, words = subprocess.PIPE, [*map(str, command)]
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=environment) as process:
        try:
            printed, errors = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, errors = process.communicate()
            errors += f"killed after {PATIENCE_S:g} s"
    assert process.returncode == 0, f"{' '.join(words)}\n{printed}{errors}"
    return printed
