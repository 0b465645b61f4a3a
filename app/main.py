"""``serve run spectra_serve:app`` and ``serve build spectra_serve:app``: the application with its defaults."""

from __future__ import annotations

from app.builder import build_app
from app.config.serve import ServeConfig

app = build_app(ServeConfig())
