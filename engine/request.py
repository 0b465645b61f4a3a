"""One request for tokens, from the edge to the speculators.

The edge makes it (``app.api.requests.convert`` for HTTP and handles, ``app.offline`` for generate and bench), the
router or the offline loop fills in the server's defaults, and everything below holds this very object: ``Sequence.of``
in the scheduler, ``RequestView`` in the speculators. A new field is written here, where it is filled and where it is
used.
"""

from __future__ import annotations

import msgspec

from engine.sampling.params import SamplingParams

DEFAULT_NODES = 64  # the one default of a step's drafted nodes; GPUs and served CPUs draft fewer where that is faster


class Request(msgspec.Struct, frozen=True):
    """One choice to generate."""

    prompt: list[int]  # token ids
    params: SamplingParams
    method: str = ""  # of speculation; empty: the server's default
    max_nodes: int = DEFAULT_NODES  # drafted nodes of a step; 0: plain decoding. The scheduler may draft fewer
    priority: int = 0  # lower goes first
    namespace: str = ""  # of the retrieval library: whose texts it is looked up in, besides the shared ones, and feeds
    scope: str = ""  # requests share cached prefixes, and what speculators learn, only inside one scope
    teaches: bool = True  # whether its namespace may learn from its output
    emitted: list[int] = []  # output that another router has emitted already: the text goes on behind it
    tenant: str = ""  # whose place in the queue it takes; the tenants of one priority take turns
    resumed: bool = False  # another router has admitted it: a full queue does not refuse it
    model: str = ""  # ``ModelIdentity.digest`` of the model that the prompt was encoded for; "": of any
    id: str = ""  # of the response it belongs to and its choice, for logs
    request_id: str = ""  # of the client's request, in every log line that concerns it
    traceparent: str = ""  # of the span that traces it, as W3C Trace Context has it; "": it is not traced
    prediction: list[int] = []  # token ids that the output is expected to be much like; "prediction" drafts from them
    trace: bool = False  # whether every event tells the tree of its step
