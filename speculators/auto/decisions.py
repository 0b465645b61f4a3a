"""Decisions of ``auto`` about one step of a request, as counted by statistics and metrics."""

from __future__ import annotations

from engine.protocol import Decision

OFF = "off"  # plain decoding: no source drafts, nothing is read back, sources that can catch up do not observe the step
TEXT = "text"  # sources that need no answers of the target draft; nothing is read back
FULL = "full"  # all sources draft, and the target's best ids after the nodes are read back

BATCH_TOO_LARGE = Decision(OFF, "batch", False)  # even a draft that is always right would not be worth it
BACKS_OFF = Decision(OFF, "rests", False)  # a pause after drafts that were not worth it
NOT_WORTH_IT = Decision(OFF, "unlikely", False)  # sources proposed drafts that are not worth their cost
NO_PROPOSAL = Decision(OFF, "nothing", False)  # sources proposed nothing
OBSERVES = Decision(FULL, "listens")  # nothing is worth it yet, but the target's answer may improve the next draft
DRAFTS_FROM_TEXT = Decision(TEXT, "pays", False)
DRAFTS_FROM_ALL = Decision(FULL, "pays")
PROBES_ALL = Decision(FULL, "tries")  # a retry after drafts from text, which were better before
