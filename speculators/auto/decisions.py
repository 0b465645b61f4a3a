"""What ``auto`` can decide about one step of a request; statistics and metrics count these."""

from __future__ import annotations

from engine.protocol import Decision

OFF = "off"  # as without speculation: nothing is asked, nothing read back, nothing told that can be caught up
TEXT = "text"  # sources that need no answer of the target's draft; nothing is read back
FULL = "full"  # all sources draft, and what the target says behind the nodes is read back

BATCH = Decision(OFF, "batch", False)  # in a batch like this not even right drafts would pay
RESTS = Decision(OFF, "rests", False)  # some steps after vain tries
UNLIKELY = Decision(OFF, "unlikely", False)  # sources were asked, and nothing they proposed pays
NOTHING = Decision(OFF, "nothing", False)  # sources were asked, and proposed nothing
LISTENS = Decision(FULL, "listens")  # nothing pays yet, but the target's answer may make the next draft better
TEXT_PAYS = Decision(TEXT, "pays", False)
FULL_PAYS = Decision(FULL, "pays")
FULL_TRIES = Decision(FULL, "tries")  # it did not pay more than text did, which is tried again after a while
