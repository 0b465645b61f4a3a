"""Roles of the connections that a stage accepts."""

from __future__ import annotations

STEPS, RESULTS = "steps", "results"  # the router's: steps go in, results come out
STAGE = "stage"  # of the stage before
ROWS = "rows"  # of the last stage, which asks for attention rows
STAGE_ROLES = (STEPS, RESULTS, STAGE, ROWS)
