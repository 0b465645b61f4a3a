"""Measurements that are kept in JSON files from one start of a process to the next."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


def keep_json(file: Path, value: Any, what: str) -> None:
    """Write ``value`` to a file, whole or not at all; a folder that cannot be written is no error.

    Args:
        file: where; its folders are made.
        value: plain data.
        what: the value's name, for the warning.
    """
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(value), encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        logger.warning("%s were not kept: %s", what, error)
        with contextlib.suppress(OSError):
            partial.unlink()
