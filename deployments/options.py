"""What the deployments can be told. Frozen, and free of Ray, so that a command line can read it before Ray is there."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.scheduling.scheduler import SchedulerOptions
from retrieval_store.service.compaction import Target
from retrieval_store.service.learner import LiveOptions


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """Defaults and limits of the router."""

    model: str = "demo"  # name in metrics
    method: str = AUTOREGRESSIVE  # for requests that name none
    max_nodes: int = 64  # likewise
    limit_nodes: int = 256  # a request that asks for more nodes is refused
    cost_file: str = ""  # where measured step times are kept between starts; "": nowhere
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    shared_namespace: str = "default"  # naming it is naming none
    max_wait: float | None = 60.0  # seconds a newcomer may have to wait for its start, or it is refused; None: for ever
    affinity: str = "none"  # "prefix": requests that begin alike go to the same lane
    affinity_slack: int = 4096  # tokens of work that this lane may have more than the least loaded one
    failover: float = 1.0  # seconds a lane may be without a pipeline before other lanes take its sequences over
    step_deadline: float = 10.0  # seconds a step may take, or its pipeline counts as lost; more if it is predicted to


@dataclass(frozen=True, slots=True)
class SpeculatorPlacement:
    """Where speculators run."""

    actors: int = 0  # 0: inline in the router
    timeout: float = 2.0  # seconds a draft may take before a step goes on without it
    gpus: float = 0.0  # per actor, for a drafter with weights


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What a stage actor gets from the cluster."""

    cpus: float = 0.1  # per stage
    gpus: float = 0.0  # per stage
    threads: int = 1  # intra-op threads per stage
    transport: str = "auto"  # "unix" or "tcp" alone; otherwise unix within a node, tcp between nodes
    # "nccl", "gloo": hidden states go that way, all else as with "auto", which takes nccl where both stages can
    environment: tuple[tuple[str, str], ...] = ()
    placement: str = "pack"  # of the stages on nodes; any of Ray's strategies, in lower case
    stage_timeout: float = 5.0  # seconds a stage may leave a ping unanswered before it is replaced
    replace_timeout: float = 600.0  # seconds in which a stage must be replaced, or else the whole pipeline is


@dataclass(frozen=True, slots=True)
class RetrievalOptions:
    """What the retrieval service serves, and to whom."""

    store: str = field(repr=False)  # URL or folder of the store; "": in memory, of this service alone
    cache: str  # folder of snapshots on every node
    target: Target
    namespace: str = "default"  # the one that is everybody's
    poll: float = 2.0  # seconds between two looks at the store
    live: tuple[str, ...] = ()  # namespaces that learn
    learning: LiveOptions = field(default_factory=LiveOptions)
