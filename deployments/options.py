"""Options of the deployments. Free of Ray, so that a command line can build them before it imports Ray."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from deployments.observability.logs import LogOptions
from deployments.observability.traces import TraceOptions
from engine.request import DEFAULT_NODES
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.scheduling.scheduler import SchedulerOptions
from retrieval_store.service.compaction import TargetVocabulary
from retrieval_store.service.learner import LiveOptions


@dataclass(frozen=True, slots=True)
class ScalingOptions:
    """Bounds of the number of pipelines, and how fast it follows the load."""

    least: int = 1
    most: int = 1
    up_delay: float = 10.0  # seconds that requests must lack room before a pipeline is added
    down_delay: float = 300.0  # seconds that a pipeline must be superfluous before it is removed
    pending_timeout: float = 900.0  # warn when a requested pipeline has not started after this many seconds


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """Defaults and limits of the router."""

    model: str = "model"  # label of metrics
    method: str = AUTOREGRESSIVE  # default of requests
    max_nodes: int = DEFAULT_NODES  # drafted nodes of a step, for requests that name no number
    fits_nodes: bool = (
        False  # lower ``max_nodes`` to the fastest number by step times, unless the method chooses itself
    )
    methods: tuple[str, ...] = ()  # that requests may name in addition to ``method``; (): all
    limit_nodes: int = 256  # the edge refuses a request for more nodes
    cost_file: str = ""  # name, with the precision, of the cache of measured step times; "": none
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    shared_namespace: str = "default"  # naming it is the same as naming none
    max_wait: float | None = 60.0  # refuse requests with a longer estimated wait (seconds); None: no limit
    affinity: str = "none"  # "prefix": requests with the same prefix go to the same lane
    affinity_slack: int = 4096  # tokens of work by which that lane may exceed the least loaded one
    failover: float = 1.0  # seconds a lane may be without a pipeline before its sequences move
    step_deadline: float = 10.0  # seconds after which a step's pipeline counts as lost; more for steps known as slow
    traces: TraceOptions = field(default_factory=TraceOptions)
    software: str = ""  # versions of libraries, for the model's fingerprint
    logs: LogOptions = field(default_factory=LogOptions)
    grace: float = 5.0  # seconds that running requests have when the router or a pipeline is stopped
    scaling: ScalingOptions | None = None  # None: one pipeline per target


@dataclass(frozen=True, slots=True)
class SpeculatorPlacement:
    """Where and how speculators run."""

    actors: int = 0  # 0: inline in the router
    timeout: float = 2.0  # seconds a draft may take before a step continues without it
    gpus: float = 0.0  # per actor, for a drafter with weights
    logs: LogOptions = field(default_factory=LogOptions)


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Resources, transport and supervision of a pipeline's stages."""

    cpus: float = 0.1  # per process: a stage, or one of its tensor-parallel ranks
    gpus: float = 0.0  # per process
    threads: int = 1  # intra-op threads per process
    # "unix" and "tcp" allow that transport only. "auto" uses unix within a node, tcp between nodes, and nccl for hidden
    # states if both stages can. "nccl" and "gloo" set the transport of hidden states, and are like "auto" otherwise.
    transport: str = "auto"
    environment: tuple[tuple[str, str], ...] = ()
    placement: str = "pack"  # Ray's placement strategy of the stages, in lower case
    stage_timeout: float = 5.0  # seconds without an answer to a ping before a stage is replaced
    replace_timeout: float = 600.0  # seconds a stage may take to be replaced before the whole pipeline is
    logs: LogOptions = field(default_factory=LogOptions)
    grace: float = 5.0  # seconds that running requests have when the pipeline is replaced
    standby_stages: int = 0  # spare processes without weights, each in its own bundle, for lost stages


@dataclass(frozen=True, slots=True)
class RetrievalOptions:
    """Store, namespaces and learning of the retrieval service."""

    store: str = field(repr=False)  # URL or folder of the store; "": in memory
    cache: str  # folder of snapshots on every node, as ``in_cache`` resolves it
    target: TargetVocabulary
    namespace: str = "default"  # the shared one: all requests use it
    poll: float = 2.0  # seconds between two polls of the store
    grace: float = 3600.0  # seconds that superseded versions, and the live texts after them, are kept
    live: tuple[str, ...] = ()  # namespaces that learn
    learning: LiveOptions = field(default_factory=LiveOptions)
    credentials: tuple[str, ...] = ()  # environment variables that the service's node must have
    logs: LogOptions = field(default_factory=LogOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """Bounds of kept answers; every answer, and with it its prompt, is deleted in the end."""

    per_tenant: int = 256  # answers of a tenant, finished ones included
    bytes_per_tenant: int = 64 << 20
    total_bytes: int = 1 << 28  # of all tenants
    keep_seconds: float = 600.0  # from the end of an answer to its deletion
    unread_seconds: float = 60.0  # a stream without a reader is cancelled after this time
    longest_seconds: float = 3600.0  # an unfinished answer fails after this time


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Bounds of the answer keeper, and the Redis in which answers survive its death."""

    limits: AnswerLimits = field(default_factory=AnswerLimits)
    store: str = field(default="", repr=False)  # URL of the Redis; "": answers are kept in memory alone
    name: str = "default"  # of this server's answers in the Redis; no two servers may share it
    grace: float = 5.0  # seconds that readers have when a keeper without a store is stopped
    credentials: tuple[str, ...] = ()  # environment variables that the keeper's node must have
    logs: LogOptions = field(default_factory=LogOptions)
    # Drawn where the application is built. A keeper takes its predecessor's answers over at once if both have the same.
    instance: str = field(default_factory=lambda: secrets.token_hex(8))
