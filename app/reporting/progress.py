"""Progress bars on stderr."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def bar(what: str | None, total: int | None, unit: str, **options: Any) -> Any:
    """A bar of ``tqdm`` on stderr with an estimate of the time left; there is no estimate if ``total`` is None."""
    return tqdm(total=total, desc=what, unit=unit, file=sys.stderr, **options)
