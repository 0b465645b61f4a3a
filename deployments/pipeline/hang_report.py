"""Tells the owner of a pipeline that it hangs, so that its stages are looked at now. Knows no pipeline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

REPORT_S = 5.0  # that a report may take

Suspect = Callable[[str], Awaitable[None]]  # takes the reason

logger = logging.getLogger(__name__)


async def report(suspect: Suspect | None, name: str, reason: str) -> None:
    """Tell the owner of the pipeline ``name``, if there is anybody to tell; never fails."""
    if suspect is None:
        return
    try:
        await asyncio.wait_for(suspect(reason), REPORT_S)
    except Exception as error:  # its owner may be gone as well: then it is being replaced already
        logger.warning("%s could not be told that it is suspected: %s", name, error)
