"""``serve run app.main:app`` and ``serve build app.main:app``: the application with its defaults."""

from __future__ import annotations

from app.builder import build_app

app = build_app({})
