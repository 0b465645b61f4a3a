"""Versions of the installed package, and of what it computes with."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("spectra-serve")
SOFTWARE = " ".join(f"{name} {version(name)}" for name in ("spectra-serve", "torch", "transformers"))
