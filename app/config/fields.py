"""What one application can be told: the fields, their limits and what --help says of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.demo.paths import DEMO
from app.inputs.stores import DEFAULT_NAMESPACE
from retrieval_store.service.manifest_feed import NAMESPACE

NAMESPACE_PATTERN = f"^{NAMESPACE.pattern}$"


class ServeFields(BaseModel):
    """Sizes in tokens unless the field says otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)  # a URL may hold a password

    model: str = Field(DEMO, description="directory or hub id of the target; 'demo' is the model in the package")
    name: str | None = Field(None, description="name clients use; the model's last path component by default")
    method: str = Field("auto", description="speculation for requests that name none")
    max_nodes: Annotated[int, Field(ge=0, le=4096)] = Field(64, description="drafted nodes per step, by default")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="float32 on a CPU and the checkpoint's own on a GPU by default"
    )
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = Field("cpu", description="cpu or cuda")
    stages: Annotated[int, Field(ge=1)] = Field(1, description="pipeline stages")
    layer_split: str = Field(
        "auto",
        description="layers of every stage: auto (by weights), even, measured (by times, taken once per device), or "
        "counts as in 22,20,20,18",
    )
    stage_memory_gib: str | float | None = Field(
        None, description="GiB of weights and KV cache a stage may take, or one number per stage, as in 80,80,40,40"
    )
    quantization: Literal["int8"] | None = Field(
        None, description="int8 makes the layers' matrices int8 by bitsandbytes (extra int8); not by default"
    )
    replicas: Annotated[int, Field(ge=1, le=64)] = Field(1, description="pipelines, each with all the stages")
    affinity: Literal["none", "prefix"] = Field(
        "none", description="prefix sends requests that begin alike to the same replica"
    )
    affinity_slack: Annotated[int, Field(ge=0)] = Field(
        4096, description="tokens of work that replica may have more than the least loaded one"
    )
    failover: Annotated[float, Field(ge=0)] = Field(
        1.0, description="seconds a lost pipeline has to come back before other replicas take its requests over"
    )
    step_deadline: Annotated[float, Field(gt=0)] = Field(
        10.0, description="seconds a step may take, and at least ten times what is usual, before it counts as hung"
    )
    kv_gib: Annotated[float, Field(gt=0)] = Field(0.5, description="KV cache over all stages, GiB")
    block_size: Annotated[int, Field(ge=1)] = Field(64, description="tokens per KV block")
    max_model_len: Annotated[int, Field(ge=2)] | None = Field(None, description="longest prompt + output")
    max_sequences: Annotated[int, Field(ge=1)] = Field(64, description="sequences decoded side by side")
    max_waiting: Annotated[int, Field(ge=1)] = Field(256, description="requests queued before 429")
    max_wait: Annotated[float, Field(gt=0)] | None = Field(
        60.0,
        description="seconds a request may be expected to wait for its start before it is answered with 429; tenants "
        "(the request's user) take turns, so whoever lets clients choose user freely lets them choose their share",
    )
    max_step_rows: Annotated[int, Field(ge=1)] = Field(2048, description="tokens and nodes of one step")
    prefill_chunk: Annotated[int, Field(ge=1)] = Field(512, description="prompt tokens per step, at most")
    max_stall: Annotated[float, Field(gt=0)] = Field(
        0.1, description="seconds that prompt tokens may add to a step while any sequence decodes"
    )
    prefix_cache: bool = Field(
        True, description="keep the beginnings of texts in KV blocks that are free, for requests that begin alike"
    )
    speculator_actors: Annotated[int, Field(ge=0)] = Field(0, description="0 drafts inside the router")
    speculator_gpus: Annotated[float, Field(ge=0)] = Field(0.0, description="Ray GPUs a speculator actor reserves")
    draft_timeout: Annotated[float, Field(gt=0)] = Field(2.0, description="seconds a draft may take, in actors")
    ingress_replicas: Annotated[int, Field(ge=1)] = Field(1, description="HTTP replicas")
    threads: Annotated[int, Field(ge=1)] = Field(1, description="intra-op threads of a stage")
    stage_cpus: Annotated[float, Field(ge=0)] = Field(0.1, description="Ray CPUs a stage reserves")
    stage_gpus: Annotated[float, Field(ge=0)] = Field(0.0, description="Ray GPUs a stage reserves")
    stage_placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = Field(
        "pack", description="stages on nodes: few or many if possible, one or all different in any case"
    )
    stage_timeout: Annotated[float, Field(gt=0)] = Field(
        5.0, description="seconds a stage may leave pings unanswered before it is replaced"
    )
    replace_timeout: Annotated[float, Field(gt=0)] = Field(
        600.0, description="seconds in which a lost stage must be replaced, or else its whole pipeline is"
    )
    transport: Literal["auto", "unix", "tcp", "nccl", "gloo"] = Field(
        "auto",
        description="between stages: unix or tcp sockets alone; nccl or gloo for hidden states; auto is nccl between "
        "GPUs that have it, and sockets otherwise",
    )
    default_max_tokens: Annotated[int, Field(ge=1)] = Field(1024, description="for requests without max_tokens")
    max_body_mib: Annotated[float, Field(gt=0)] = Field(4.0, description="largest request body, MiB")
    grace: Annotated[float, Field(ge=0)] = Field(5.0, description="seconds running requests get at shutdown")
    router_patience: Annotated[float, Field(gt=0)] = Field(
        60.0, description="seconds a request waits for a router that is being replaced before it fails with 503"
    )
    heads: str | None = Field(None, description="file of the model's induction heads, for pld-plus-a")
    draft_model: str | None = Field(None, description="directory or hub id of draft-model's small model; 'demo' works")
    drafter: dict[str, Any] = Field(default_factory=dict, description="further settings of draft-model")
    simulate: str | None = Field(
        None,
        description="no model: stages sleep as a profile says (70b-h100x2, 70b-h100x4, 70b-h100x8, flat10, or a JSON "
        "file) and write known text; model then gives tokenizer and vocabulary, the profile stages",
    )
    simulate_answers: str | None = Field(
        None, description="JSON lines of recorded conversations that a simulated target answers with"
    )
    anpd: dict[str, Any] = Field(default_factory=dict, description="settings of anpd")
    lookahead: dict[str, Any] = Field(default_factory=dict, description="settings of lookahead")
    pld: dict[str, Any] = Field(default_factory=dict, description="settings of pld")
    pld_plus: dict[str, Any] = Field(default_factory=dict, description="settings of pld-plus-h and pld-plus-a")
    retrieval: str | None = Field(
        None,
        repr=False,  # may hold a password
        description="what requests look up: a snapshot's folder, a store's folder or redis://.. URL, text or JSON "
        "lines, builtin, or none; by default builtin for the demo model and none for others",
    )
    retrieval_namespace: Annotated[str, Field(pattern=NAMESPACE_PATTERN)] = Field(
        DEFAULT_NAMESPACE, description="namespace of the store that all requests share, those that name none included"
    )
    retrieval_poll: Annotated[float, Field(gt=0)] = Field(
        2.0, description="seconds between two looks at the store; its hints come in between"
    )
    retrieval_cache: str | None = Field(
        None, description="folder on every node for snapshots of the store; in the user's cache by default"
    )
    live: str | list[str] | None = Field(
        None,
        description="namespaces that learn from what their own requests were answered, comma-separated; none by "
        "default; without a store what they learn is lost at restart",
    )
    live_tokens: Annotated[int, Field(ge=1)] = Field(200_000, description="newest live text looked up beside snapshots")
    live_interval: Annotated[float, Field(gt=0)] = Field(5.0, description="seconds between two takes of live text")
    live_compact_tokens: Annotated[int, Field(ge=1)] = Field(
        1_000_000, description="live text beyond which a new snapshot is made of it and published"
    )
    rest: dict[str, Any] = Field(default_factory=dict, description="settings of rest")
    spectra: dict[str, Any] = Field(default_factory=dict, description="settings of spectra: how its parts share a tree")
    spectra_core: dict[str, Any] = Field(default_factory=dict, description="settings of spectra-core")
    spectra_retrieval: dict[str, Any] = Field(default_factory=dict, description="settings of spectra-retrieval")
    suffix: dict[str, Any] = Field(default_factory=dict, description="settings of suffix")
    token_recycling: dict[str, Any] = Field(default_factory=dict, description="settings of token-recycling")
    successors: dict[str, Any] = Field(default_factory=dict, description="settings both of these share")
    combination: dict[str, Any] = Field(default_factory=dict, description="settings of a+b")
    auto: dict[str, Any] = Field(default_factory=dict, description="settings of auto")
