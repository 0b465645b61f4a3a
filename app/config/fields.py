"""The fields of ``spectra serve``'s configuration, but those of the methods, in the groups of its help."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.stores import DEFAULT_NAMESPACE
from retrieval_store.service.manifest_feed import NAMESPACE

AtLeastOne = Annotated[int, Field(ge=1)]
NAMESPACE_PATTERN = f"^{NAMESPACE.pattern}$"
ADVANCED = "advanced"  # key of a field's JSON schema


class FieldGroup(BaseModel):
    """Fields that ``spectra serve --help`` shows together, under the class's ``title`` and docstring."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)  # a URL may hold a password


def advanced(default: Any, description: str) -> Any:
    """Return a field that only ``--help-all`` shows."""
    made = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**made, description=description, json_schema_extra={ADVANCED: True})


class ModelFields(FieldGroup, title="model"):
    """The target model and its precision."""

    model: str = Field(DEFAULT_MODEL, description="directory, GGUF file or hub id of the target model")
    revision: Annotated[str, Field(pattern=r"^\w[\w./-]{0,127}$")] | None = Field(
        None, description="branch, tag or commit of a model on the hub; fixed to the commit found at the start"
    )
    name: str | list[str] | None = Field(
        None,
        description="model name for clients; repeat for more names (default: last part of the model's path); metrics "
        "show the first",
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="weights and arithmetic (default: float32 on a CPU, the checkpoint's dtype on a GPU)"
    )
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        "auto",
        description="cpu, cuda, cuda:N or auto; auto is cuda in a server if stage_gpus is above 0, and in other "
        "commands if torch sees a GPU",
    )
    quantization: Literal["int8", "fp8"] | None = Field(
        None, description="quantize the layers' matrices when loading; int8 on a CPU needs the extra int8"
    )
    numerics: Literal["auto", "exact", "fast", "layers"] = Field(
        "auto",
        description="CUDA kernels: exact gives equal bits in every batch (compute capability 9.0), fast uses cuBLAS "
        "(8.0), layers uses Hugging Face's code; auto picks the first that passes a self-test",
    )
    simulate: str | None = advanced(
        None,
        "run no model: stages sleep as long as a profile says (70b-h100x2, 70b-h100x4, 70b-h100x8, 8b-h200, flat10 or "
        "a JSON file) and write known text; model then names the tokenizer",
    )
    simulate_answers: str | None = advanced(None, "recorded conversations (JSON lines) that a simulated target answers")


class PipelineFields(FieldGroup, title="pipelines"):
    """How the model is split into stages, and how many pipelines there are."""

    stages: AtLeastOne = Field(1, description="pipeline stages of the model")
    stage_gpus: Annotated[float, Field(ge=0)] = Field(0.0, description="Ray GPUs that each stage reserves")
    stage_cpus: Annotated[float, Field(ge=0)] = advanced(0.1, "Ray CPUs that each stage reserves")
    stage_memory_gib: str | float | None = advanced(
        None, "limit of weights and KV cache per stage in GiB; one number, or one per stage: 80,80,40,40"
    )
    stage_placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = advanced(
        "pack", "nodes of the stages: as few (pack) or as many (spread) as possible; strict: exactly one, or one each"
    )
    layer_split: str = advanced(
        "auto",
        "layers per stage: auto (equal weights), even, measured (equal times, measured once per device), or counts: "
        "22,20,20,18",
    )
    threads: AtLeastOne | None = advanced(
        None, "torch threads per stage (default: 1 on cuda; on a CPU all physical cores but one, shared by the stages)"
    )
    transport: Literal["auto", "unix", "tcp", "nccl", "gloo"] = advanced(
        "auto", "between stages: sockets (unix, tcp), or nccl or gloo for hidden states; auto is nccl between GPUs"
    )
    replicas: Annotated[int, Field(ge=1, le=64)] = Field(1, description="pipelines, each with a copy of the model")
    max_replicas: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="most pipelines, if their number follows the load; replaces replicas"
    )
    min_replicas: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="fewest pipelines, if their number follows the load"
    )
    scale_up_delay: Annotated[float, Field(ge=1, le=3600)] = advanced(
        10.0, "add a pipeline after requests have waited this many seconds"
    )
    scale_down_delay: Annotated[float, Field(ge=1, le=86_400)] = advanced(
        300.0, "remove a pipeline after the load has fitted into fewer for this many seconds"
    )
    affinity: Literal["none", "prefix"] = advanced(
        "none", "prefix sends requests with equal beginnings to the same pipeline, for its prefix cache"
    )


class ScheduleFields(FieldGroup, title="memory and scheduling"):
    """What a pipeline holds at once, and the size of a step."""

    kv_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = Field(
        "auto", description="GiB of KV cache over all stages; auto: what a GPU has left, 0.5 on a CPU"
    )
    max_model_len: Annotated[int, Field(ge=2)] | None = Field(
        None, description="most tokens of prompt and output together (default: what model and cache hold)"
    )
    max_sequences: AtLeastOne = Field(64, description="sequences that a pipeline decodes at once")
    max_waiting: AtLeastOne = Field(256, description="requests that may wait; more get 429")
    max_wait: Annotated[float, Field(gt=0)] | None = advanced(
        60.0, "answer 429 if a request would wait longer than this many seconds; tenants take turns"
    )
    max_step_rows: AtLeastOne = advanced(2048, "most prompt tokens and drafted nodes of one step")
    max_stall: Annotated[float, Field(gt=0)] = advanced(
        0.1, "most seconds that prompt tokens add to a step while other sequences decode"
    )
    prefix_cache: bool = advanced(True, "keep the KV cache of prompts for requests that begin with the same text")


class DrafterOptions(BaseModel):
    """Settings of a trained drafter that its checkpoint does not contain."""

    model_config = FieldGroup.model_config

    depth: Annotated[StrictInt, Field(ge=1, le=32)] = 6
    beam: Annotated[StrictInt, Field(ge=1, le=32)] = 8
    layers: Annotated[tuple[Annotated[StrictInt, Field(ge=-1, lt=10_000)], ...], Field(min_length=1)] | None = None


class SpeculationFields(FieldGroup, title="speculation"):
    """How the tokens that a step verifies are drafted."""

    method: str = Field("auto", description="speculation method of requests that name none")
    methods: str | list[str] | None = Field(
        None, description="methods that requests may name, comma-separated (default: all)"
    )
    max_nodes: Annotated[int, Field(ge=0, le=4096)] | None = Field(
        None, description="drafted nodes per step (default: 63 on cuda; on a CPU a server measures it, else 64)"
    )
    drafter: str | None = Field(
        None,
        description="directory or hub id (ID@REVISION) of a drafter trained for the model: Medusa, EAGLE, "
        "ParallelSpec, P-EAGLE, DFlash",
    )
    drafter_options: DrafterOptions = advanced(
        DrafterOptions,
        "depth and beam of the drafter's trees; layers it reads, if its checkpoint names none: [1, 15, 28]",
    )
    draft_model: str | None = Field(
        None, description="directory or hub id (ID@REVISION) of the small model of method draft-model"
    )
    heads: str | None = advanced(
        None, "file of the model's induction heads for pld-plus-a (default: found at first use, then cached)"
    )
    speculator_actors: Annotated[int, Field(ge=0)] = advanced(
        0, "separate processes that draft; 0: the router's process drafts"
    )
    speculator_gpus: Annotated[float, Field(ge=0)] = advanced(0.0, "Ray GPUs that each of these processes reserves")
    draft_timeout: Annotated[float, Field(gt=0)] = advanced(
        2.0, "seconds after which a step continues without the draft of such a process"
    )


class RetrievalFields(FieldGroup, title="retrieval"):
    """Texts that requests draft from, and namespaces that learn from answers."""

    retrieval: str | None = Field(
        None,
        repr=False,  # may hold a password
        description="texts to draft from: a snapshot or store (folder or redis:// URL), text or JSON lines, builtin, "
        "or none (default: builtin in a server of the default model, else none)",
    )
    retrieval_namespace: Annotated[str, Field(pattern=NAMESPACE_PATTERN)] = advanced(
        DEFAULT_NAMESPACE, "namespace of the store that all requests share"
    )
    retrieval_cache: str | None = advanced(
        None, "folder on every node for the store's snapshots (default: in the user's cache)"
    )
    retrieval_poll: Annotated[float, Field(gt=0)] = advanced(
        2.0, "seconds between two looks at the store for snapshots and live text"
    )
    retrieval_grace: Annotated[float, Field(ge=0, le=31_536_000)] = advanced(
        3600.0, "seconds that the store keeps a replaced version, for rollbacks"
    )
    live: str | list[str] | None = Field(
        None, description="namespaces that learn from the answers to their own requests, comma-separated"
    )
    live_tokens: AtLeastOne = advanced(
        200_000, "newest live tokens that are looked up; five times as many become a new snapshot"
    )


class HttpFields(FieldGroup, title="HTTP"):
    """What clients may send, and what answers contain."""

    ingress_replicas: AtLeastOne = Field(1, description="HTTP processes")
    edge_resources: dict[str, float] = advanced(
        dict, """custom Ray resources of the nodes for router, HTTP processes and retrieval: '{"edge": 0.01}'"""
    )
    max_body_mib: Annotated[float, Field(gt=0)] = advanced(4.0, "MiB of the largest request body")
    default_max_tokens: AtLeastOne = Field(1024, description="max_tokens of requests that give none")
    generation_config: Literal["auto", "none"] = advanced(
        "auto", "sampling defaults: those of the model's generation_config.json (auto), or OpenAI's (none)"
    )
    tool_parser: Literal["auto", "none", "hermes", "llama3", "mistral"] = Field(
        "auto", description="format of the model's tool calls; auto: by its chat template; none: refuse tools"
    )
    reasoning_parser: Literal["auto", "none", "think"] = Field(
        "auto",
        description="think moves <think>..</think> from content to reasoning_content; auto: if the chat template has "
        "these tags",
    )
    playground: bool = Field(True, description="serve the pages / and /operator, which need no key")


class AccessFields(FieldGroup, title="access"):
    """Who may send requests. Without keys and header all clients are one tenant."""

    api_keys: str | None = Field(
        None, description="file of keys from `spectra keys new`; requests then need Authorization: Bearer KEY"
    )
    tenant_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] | None = Field(
        None, description="header in which a trusted gateway names the tenant; block all other clients"
    )
    trust_clients: bool = Field(
        False, description="accept priority, user (tenant) and namespace from clients unchecked"
    )
    open_metrics: bool = Field(False, description="serve /metrics without a key, for scrapers inside the network")
    cors_origins: str | list[str] | None = Field(
        None, description="web origins that may send requests, comma-separated: https://chat.example.com, or *"
    )


class LogFields(FieldGroup, title="logs and traces"):
    """What processes log, and where traces go."""

    log_format: Literal["text", "json"] = Field("text", description="format of log lines")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level that is logged")
    access_log: bool = advanced(True, "log one line (level info) per request")
    log_prompts: bool = Field(False, description="include the beginning of the prompt in that line")
    otlp_endpoint: str | None = Field(
        None,
        repr=False,  # may hold a password
        description="send traces to this OpenTelemetry collector, as in http://127.0.0.1:4318 (extra traces); env: "
        "as OpenTelemetry's environment variables say",
    )


class FailureFields(FieldGroup, title="failures"):
    """How long a part may be silent or gone before it is replaced."""

    standby_stages: Annotated[int, Field(ge=0, le=8)] = Field(
        0, description="spare processes per pipeline that replace a lost stage at once; each reserves a stage's GPU"
    )
    failover: Annotated[float, Field(ge=0)] = advanced(
        1.0, "seconds after which other replicas take over the requests of a lost pipeline"
    )
    step_deadline: Annotated[float, Field(gt=0)] = advanced(
        10.0, "seconds after which a step counts as hung; at least ten times the usual"
    )
    stage_timeout: Annotated[float, Field(gt=0)] = advanced(
        5.0, "seconds without an answer to pings after which a stage is replaced"
    )
    router_patience: Annotated[float, Field(gt=0)] = advanced(
        60.0, "seconds that requests wait for a router that is being replaced, before they get 503"
    )
    grace: Annotated[float, Field(ge=0)] = Field(
        5.0, description="seconds that running requests get when the server stops or a part is replaced"
    )
    drain: Annotated[float, Field(ge=0, le=3600)] = advanced(
        600.0, "seconds that an HTTP process which is being replaced may finish its answers"
    )


class FixedFields(
    ModelFields,
    PipelineFields,
    ScheduleFields,
    SpeculationFields,
    RetrievalFields,
    HttpFields,
    AccessFields,
    LogFields,
    FailureFields,
):
    """All fields but those of the methods."""
