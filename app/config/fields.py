"""The fields of ``spectra serve``'s configuration, but those of the methods, in the groups of its help."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.stores import DEFAULT_NAMESPACE
from retrieval_store.service.manifest_feed import NAMESPACE

AtLeastOne = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Pipelines = Annotated[int, Field(ge=1, le=64)]
NAMESPACE_PATTERN = f"^{NAMESPACE.pattern}$"
ADVANCED = "advanced"  # key of a field's JSON schema


class FieldGroup(BaseModel):
    """Fields that ``spectra serve --help`` shows together, under the class's ``title`` and docstring."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)  # a URL may hold a password


def common(default: Any, description: str) -> Any:
    """Return a field that ``--help`` shows."""
    return Field(default, description=description)


def advanced(default: Any, description: str) -> Any:
    """Return a field that only ``--help-all`` shows."""
    made = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**made, description=description, json_schema_extra={ADVANCED: True})


class ModelFields(FieldGroup, title="model"):
    """The target model and its precision."""

    model: str = common(DEFAULT_MODEL, "directory, GGUF file or hub id of the target model")
    revision: Annotated[str, Field(pattern=r"^\w[\w./-]{0,127}$")] | None = common(
        None, "branch, tag or commit of a model on the hub; fixed to the commit found at the start"
    )
    name: str | list[str] | None = common(
        None, "model name for clients; repeat for more (default: last part of the model's path); metrics show the first"
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = common(
        None, "weights and arithmetic (default: float32 on a CPU, the checkpoint's dtype on a GPU)"
    )
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = common(
        "auto", "cpu, cuda, cuda:N or auto: cuda if a server has stage_gpus above 0, or a command's torch sees a GPU"
    )
    quantization: Literal["int8", "fp8"] | None = common(
        None, "quantize the layers' matrices when loading; int8 on a CPU needs the extra int8"
    )
    numerics: Literal["auto", "exact", "fast", "layers"] = common(
        "auto",
        "CUDA kernels: exact gives equal bits in every batch (compute capability 9.0), fast uses cuBLAS "
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

    stages: AtLeastOne = common(1, "pipeline stages of the model")
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = common(
        1, "ranks of each stage: processes on one node that share the weights of every layer"
    )
    stage_gpus: NotNegative = common(0.0, "Ray GPUs that each rank of a stage reserves")
    stage_cpus: NotNegative = advanced(0.1, "Ray CPUs that each rank of a stage reserves")
    stage_memory_gib: str | float | None = advanced(
        None, "limit of weights and KV cache per rank in GiB; one number, or one per stage: 80,80,40,40"
    )
    stage_placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = advanced(
        "pack", "nodes of the stages: as few (pack) or as many (spread) as possible; strict: exactly one, or one each"
    )
    layer_split: str = advanced(
        "auto", "layers per stage: auto (equal weights), even, measured (equal times), or counts: 22,20,20,18"
    )
    threads: AtLeastOne | None = advanced(
        None, "torch threads per rank (default: 1 on cuda; on a CPU all physical cores but one, shared by all ranks)"
    )
    transport: Literal["auto", "unix", "tcp", "nccl", "gloo"] = advanced(
        "auto", "between stages: sockets (unix, tcp), or nccl or gloo for hidden states; auto is nccl between GPUs"
    )
    replicas: Pipelines = common(1, "pipelines, each with a copy of the model")
    max_replicas: Pipelines | None = common(None, "most pipelines, if their number follows the load; replaces replicas")
    min_replicas: Pipelines = common(1, "fewest pipelines, if their number follows the load")
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

    kv_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = common(
        "auto", "GiB of KV cache over all stages; auto: what a GPU has left, 0.5 on a CPU"
    )
    max_model_len: Annotated[int, Field(ge=2)] | None = common(
        None, "most tokens of prompt and output together (default: what model and cache hold)"
    )
    max_sequences: AtLeastOne = common(64, "sequences that a pipeline decodes at once")
    max_waiting: AtLeastOne = common(256, "requests that may wait; more get 429")
    max_wait: Positive | None = advanced(
        60.0, "answer 429 if a request would wait longer than this many seconds; tenants take turns"
    )
    max_step_rows: AtLeastOne = advanced(2048, "most prompt tokens and drafted nodes of one step")
    max_stall: Positive = advanced(0.1, "most seconds that prompt tokens add to a step while other sequences decode")
    prefix_cache: bool = advanced(True, "keep the KV cache of prompts for requests that begin with the same text")


class DrafterOptions(BaseModel):
    """Settings of a trained drafter that its checkpoint does not contain."""

    model_config = FieldGroup.model_config

    depth: Annotated[StrictInt, Field(ge=1, le=32)] = 6
    beam: Annotated[StrictInt, Field(ge=1, le=32)] = 8
    layers: Annotated[tuple[Annotated[StrictInt, Field(ge=-1, lt=10_000)], ...], Field(min_length=1)] | None = None


class SpeculationFields(FieldGroup, title="speculation"):
    """How the tokens that a step verifies are drafted."""

    method: str = common("auto", "speculation method of requests that name none")
    methods: str | list[str] | None = common(None, "methods that requests may name, comma-separated (default: all)")
    max_nodes: Annotated[int, Field(ge=0, le=4096)] | None = common(
        None, "drafted nodes per step (default: 63 on cuda; on a CPU a server measures it, else 64)"
    )
    drafter: str | None = common(
        None,
        "directory or hub id (ID@REVISION) of a trained drafter: Medusa, EAGLE, ParallelSpec, P-EAGLE, DFlash "
        "(default: the default model has one; 'none' turns it off)",
    )
    drafter_options: DrafterOptions = advanced(
        DrafterOptions, "depth and beam of its trees; layers that it reads, if its checkpoint names none: [1, 15, 28]"
    )
    draft_model: str | None = common(None, "directory or hub id (ID@REVISION) of the small model of method draft-model")
    heads: str | None = advanced(
        None, "file of the model's induction heads for pld-plus-a (default: found at first use, then cached)"
    )
    speculator_actors: Annotated[int, Field(ge=0)] = advanced(
        0, "separate processes that draft; 0: the router's process drafts"
    )
    speculator_gpus: NotNegative = advanced(0.0, "Ray GPUs that each of these processes reserves")
    draft_timeout: Positive = advanced(2.0, "seconds after which a step continues without the draft of such a process")


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
    retrieval_poll: Positive = advanced(2.0, "seconds between two looks at the store for snapshots and live text")
    retrieval_grace: Annotated[float, Field(ge=0, le=31_536_000)] = advanced(
        3600.0, "seconds that the store keeps a replaced version, for rollbacks"
    )
    live: str | list[str] | None = common(
        None, "namespaces that learn from the answers to their own requests, comma-separated"
    )
    live_tokens: AtLeastOne = advanced(
        200_000, "newest live tokens that are looked up; five times as many become a new snapshot"
    )


class HttpFields(FieldGroup, title="HTTP"):
    """What clients may send, and what answers contain."""

    ingress_replicas: AtLeastOne = common(1, "HTTP processes")
    edge_resources: dict[str, float] = advanced(
        dict,
        """custom Ray resources of the nodes for router, HTTP processes, answers and retrieval: '{"edge": 0.01}'""",
    )
    max_body_mib: Positive = advanced(4.0, "MiB of the largest request body")
    default_max_tokens: AtLeastOne = common(1024, "max_tokens of requests that give none")
    generation_config: Literal["auto", "none"] = advanced(
        "auto", "sampling defaults: those of the model's generation_config.json (auto), or OpenAI's (none)"
    )
    tool_parser: Literal["auto", "none", "hermes", "llama3", "mistral"] = common(
        "auto", "format of the model's tool calls; auto: by its chat template; none: refuse tools"
    )
    reasoning_parser: Literal["auto", "none", "think"] = common(
        "auto", "think moves <think>..</think> from content to reasoning_content; auto: if the template has these tags"
    )
    playground: bool = common(True, "serve the pages / and /operator, which need no key")


class AccessFields(FieldGroup, title="access"):
    """Who may send requests. Without keys and header all clients are one tenant."""

    api_keys: str | None = common(
        None, "file of keys from `spectra keys new`; requests then need Authorization: Bearer KEY"
    )
    tenant_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] | None = common(
        None, "header in which a trusted gateway names the tenant; block all other clients"
    )
    trust_clients: bool = common(False, "accept priority, user (tenant) and namespace from clients unchecked")
    open_metrics: bool = common(False, "serve /metrics without a key, for scrapers inside the network")
    cors_origins: str | list[str] | None = common(
        None, "web origins that may send requests, comma-separated: https://chat.example.com, or *"
    )


class AnswerFields(FieldGroup, title="kept answers"):
    """Responses in the background, and streams that clients may resume."""

    answer_store: str | None = Field(
        None,
        repr=False,  # may hold a password
        description="Redis that keeps them, as in redis://HOST:6379/1; default: the one of --retrieval, else memory",
        json_schema_extra={ADVANCED: True},
    )
    answers_per_tenant: Annotated[int, Field(ge=0, le=1_000_000)] = advanced(
        256, "answers of a tenant, finished ones included; 0: none are kept"
    )
    answers_mib_per_tenant: Annotated[float, Field(gt=0, le=65_536)] = advanced(
        64.0, "MiB of a tenant's answers; the prompt of a running one counts tenfold"
    )
    answers_mib: Annotated[float, Field(gt=0, le=1_048_576)] = advanced(256.0, "MiB of all kept answers")
    answer_expiry: Annotated[float, Field(ge=1, le=604_800)] = advanced(
        600.0, "seconds from the end of an answer to its deletion, with its prompt"
    )
    answer_seconds: Annotated[float, Field(ge=1, le=604_800)] = advanced(
        3600.0, "seconds after which an unfinished answer fails"
    )
    unread_seconds: Annotated[float, Field(ge=1, le=86_400)] = advanced(
        60.0, "seconds that a resumable stream continues without a reader"
    )


class LogFields(FieldGroup, title="logs and traces"):
    """What processes log, and where traces go."""

    log_format: Literal["text", "json"] = common("text", "format of log lines")
    log_level: Literal["debug", "info", "warning", "error"] = common("info", "lowest level that is logged")
    access_log: bool = advanced(True, "log one line (level info) per request")
    log_prompts: bool = common(False, "include the beginning of the prompt in the log line of its request")
    otlp_endpoint: str | None = Field(
        None,
        repr=False,  # may hold a password
        description="send traces to this OpenTelemetry collector, as in http://127.0.0.1:4318 (extra traces); env: "
        "as OpenTelemetry's environment variables say",
    )


class FailureFields(FieldGroup, title="failures"):
    """How long a part may be silent or gone before it is replaced."""

    standby_stages: Annotated[int, Field(ge=0, le=8)] = common(
        0, "spare processes per pipeline that replace a lost stage at once; each reserves a stage's GPU"
    )
    failover: NotNegative = advanced(
        1.0, "seconds after which other replicas take over the requests of a lost pipeline"
    )
    step_deadline: Positive = advanced(10.0, "seconds after which a step counts as hung; at least ten times the usual")
    stage_timeout: Positive = advanced(5.0, "seconds without an answer to pings after which a stage is replaced")
    router_patience: Positive = advanced(
        60.0, "seconds that requests wait for a router that is being replaced, before they get 503"
    )
    grace: NotNegative = common(5.0, "seconds that running requests get when the server stops or a part is replaced")
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
    AnswerFields,
    LogFields,
    FailureFields,
):
    """All fields but those of the methods."""
