"""One request for tokens, from the edge to the speculators.

The edge makes it (``app.api.requests.convert`` for HTTP and handles, ``app.offline`` for generate and bench), the
router or the offline loop fills in the default method, and everything below holds this very object: ``Sequence.of`` in
the scheduler, ``RequestView`` in the speculators. A new field is added here, where it is filled and where it is used.
"""

from __future__ import annotations

import msgspec

from engine.sampling.params import SamplingParams

DEFAULT_NODES = 64  # the one default of a step's drafted nodes; GPUs and served CPUs draft fewer where that is faster


class Request(msgspec.Struct, frozen=True):
    """One choice to generate."""

    prompt: list[int]  # token ids
    params: SamplingParams
    method: str = ""  # of speculation; "": the server's default
    max_nodes: int = DEFAULT_NODES  # drafted nodes of a step; 0: plain decoding. The scheduler may draft fewer
    priority: int = 0  # lower goes first
    namespace: str = ""  # of the retrieval library: drafts come from its texts and the shared ones, outputs go to it
    scope: str = ""  # requests share cached prefixes and speculator statistics only inside one scope
    teaches: bool = True  # whether its namespace may learn from its output
    emitted: list[int] = []  # output that a former router emitted; the text continues after it
    tenant: str = ""  # the tenants of one priority take turns in the queue
    resumed: bool = False  # a former router admitted it: a full queue does not refuse it
    model: str = ""  # ``ModelIdentity.digest`` of the model that the prompt was encoded for; "": any
    id: str = ""  # of the response and the choice, for logs
    request_id: str = ""  # of the client's request, for log lines
    traceparent: str = ""  # of its span, as in W3C Trace Context; "": not traced
    prediction: list[int] = []  # token ids of a similar output, from which "prediction" drafts
    trace: bool = False  # whether every event has the tree of its step
