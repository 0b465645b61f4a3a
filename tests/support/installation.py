"""Environments beside this one: with the wheel of this checkout, or with packages of an index."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DESCRIBED = ("pyproject.toml", "README.md", "LICENSE")  # what the build reads beside the packages


def packages() -> list[Path]:
    """Folders that the wheel is made of."""
    return [path.parent for path in sorted(ROOT.glob("*/py.typed"))]


def build_wheel(folder: Path) -> Path:
    """A wheel of the checkout's packages, made as ``pip wheel`` makes it; nothing is downloaded.

    The sources are copied first: setuptools would leave folders beside them, and take files from those of an earlier
    build.
    """
    source = folder / "source"
    for package in packages():
        shutil.copytree(package, source / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in DESCRIBED:
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment(folder: Path) -> Path:
    """A new environment that finds this process's packages behind its own; returns its Python."""
    venv.EnvBuilder(symlinks=True, clear=True).create(folder)
    library = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    dependencies = [path for path in sys.path if Path(path).name == "site-packages"]
    (library / "dependencies.pth").write_text("".join(f"{path}\n" for path in dependencies))
    return folder / "bin" / "python"


def install(wheel: Path, folder: Path) -> Path:
    """A new environment with the wheel, whose dependencies are those of this process; returns its ``spectra``."""
    python = environment(folder)
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    return python.with_name("spectra")


def pip(*arguments: str, within: float = 900) -> None:
    """Run pip, for so many seconds at most; fails with what it says."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=within)
    assert done.returncode == 0, done.stderr
