"""Cases that both readers of traces, the terminal's and the page's, are tested on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""Each has ``chunks`` of a stream, the expected ``parts`` (text and source) and the ``tokens`` of each source."""
