"""Configuration of ``spectra serve``: what users write, checked; no I/O."""

from app.config.serve import ServeConfig

__all__ = ["ServeConfig"]
