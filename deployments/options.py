"""Options of the deployments; frozen, and free of Ray, so that a command line can read them before Ray is imported."""

from __future__ import annotations

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

    least: int = 1  # always there
    most: int = 1
    up_delay: float = 10.0  # seconds that requests lack room before a pipeline is added
    down_delay: float = 300.0  # seconds that a pipeline has been too many before it is given up
    pending_timeout: float = 900.0  # seconds after which a pipeline that was added and has not come is told of


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """Defaults and limits of the router."""

    model: str = "model"  # name in metrics
    method: str = AUTOREGRESSIVE  # for requests that name none
    max_nodes: int = DEFAULT_NODES  # drafted nodes of a step, for requests that name no number
    fits_nodes: bool = (
        False  # lower ``max_nodes`` to the fastest number by step times, unless the method chooses itself
    )
    methods: tuple[str, ...] = ()  # that requests may name, joined or not, besides ``method``; (): all
    limit_nodes: int = 256  # the edge refuses a request for more nodes
    cost_file: str = ""  # with the model's precision, the name in the cache that keeps measured step times; "": none
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    shared_namespace: str = "default"  # a request that names it is like one without a namespace
    max_wait: float | None = 60.0  # seconds of estimated wait beyond which a newcomer is refused; None: no limit
    affinity: str = "none"  # "prefix": requests that begin alike go to the same lane
    affinity_slack: int = 4096  # tokens of work by which that lane may exceed the least loaded one
    failover: float = 1.0  # seconds a lane may be without a pipeline before other lanes take its sequences over
    step_deadline: float = 10.0  # seconds a step may take before its pipeline counts as lost; more for known slow ones
    traces: TraceOptions = field(default_factory=TraceOptions)
    software: str = ""  # versions of what computes, for the model's fingerprint
    logs: LogOptions = field(default_factory=LogOptions)
    grace: float = 5.0  # seconds that running requests get when the router is replaced and no other takes its pipeline
    scaling: ScalingOptions | None = None  # None: as many pipelines as there are targets


@dataclass(frozen=True, slots=True)
class SpeculatorPlacement:
    """Where speculators run."""

    actors: int = 0  # 0: inline in the router
    timeout: float = 2.0  # seconds a draft may take before a step goes on without it
    gpus: float = 0.0  # per actor, for a drafter with weights
    logs: LogOptions = field(default_factory=LogOptions)


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What a stage actor gets from the cluster."""

    cpus: float = 0.1  # per stage
    gpus: float = 0.0  # per stage
    threads: int = 1  # intra-op threads per stage
    # "unix" and "tcp" allow that transport alone. "auto" takes unix within a node, tcp between nodes, and nccl for
    # hidden states where both stages can. "nccl" and "gloo" set the transport of hidden states, and are "auto" else.
    transport: str = "auto"
    environment: tuple[tuple[str, str], ...] = ()
    placement: str = "pack"  # of the stages on nodes; any of Ray's strategies, in lower case
    stage_timeout: float = 5.0  # seconds a stage may leave a ping unanswered before it is replaced
    replace_timeout: float = 600.0  # seconds a stage's replacement may take before the whole pipeline is replaced
    logs: LogOptions = field(default_factory=LogOptions)
    grace: float = 5.0  # seconds that running requests get when the pipeline is replaced
    standby_stages: int = 0  # processes without weights, each in a bundle of its own, for stages that are lost


@dataclass(frozen=True, slots=True)
class RetrievalOptions:
    """What the retrieval service serves, and where it keeps it."""

    store: str = field(repr=False)  # URL or folder of the store; "": in memory, of this service alone
    cache: str  # folder of snapshots on every node, as ``in_cache`` reads it
    target: TargetVocabulary
    namespace: str = "default"  # shared: all requests look up in it
    poll: float = 2.0  # seconds between two polls of the store
    grace: float = 3600.0  # seconds that superseded versions stay, and what they lack in the log
    live: tuple[str, ...] = ()  # namespaces that learn
    learning: LiveOptions = field(default_factory=LiveOptions)
    credentials: tuple[str, ...] = ()  # names of variables that the service's node must have in its environment
    logs: LogOptions = field(default_factory=LogOptions)
