"""What one application can be told: the fields in groups, their limits and what ``--help`` says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.config.access_fields import AccessFields
from app.config.answer_fields import AnswerFields
from app.config.field_group import NAMESPACE_PATTERN, AtLeastOne, FieldGroup
from app.config.http_fields import HttpFields
from app.config.method_fields import MethodFields, build_method_fields
from app.config.operation_fields import FailureFields, LogFields
from app.config.scaling_fields import ScalingFields
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.stores import DEFAULT_NAMESPACE


class ModelFields(FieldGroup):
    """Model and precision."""

    TITLE: ClassVar[str] = "model"

    model: str = Field(DEFAULT_MODEL, description="directory, GGUF file or hub id of the target")
    revision: Annotated[str, Field(pattern=r"^\w[\w./-]{0,127}$")] | None = Field(
        None,
        description="branch, tag or commit of the model on the hub, its main branch by default; the commit it is at "
        "the start is served until the application is deployed again",
    )
    name: str | list[str] | None = Field(
        None,
        description="name clients use, the model's last path component by default; given again, further names; the "
        "first is the one in metrics, and a model's hub id counts in any case",
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="float32 on a CPU and the checkpoint's own on a GPU by default"
    )
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        "auto", description="of the stages: cpu, cuda, or auto, cuda if stage_gpus gives them GPUs and else cpu"
    )
    quantization: Literal["int8", "fp8"] | None = Field(
        None,
        description="makes the layers' matrices int8 or fp8, with a scale per output; int8 on a CPU is bitsandbytes' "
        "(extra int8)",
    )
    numerics: Literal["auto", "exact", "fast", "layers"] = Field(
        "auto",
        description="on cuda: exact gives a token the same bits in every step (compute capability 9.0 or higher); fast "
        "multiplies by cuBLAS (8.0); layers is Hugging Face's and slow; auto is the first that can run and passes a "
        "self-test at load",
    )
    simulate: str | None = Field(
        None,
        description="no model: stages sleep as a profile says (70b-h100x2, 70b-h100x4, 70b-h100x8, 8b-h200, flat10, or "
        "a JSON file) and write known text; model then gives tokenizer and vocabulary, the profile stages",
    )
    simulate_answers: str | None = Field(
        None, description="JSON lines of recorded conversations that a simulated target answers with"
    )


class PipelineFields(FieldGroup):
    """How the model is divided into stages, and how many pipelines of them there are."""

    TITLE: ClassVar[str] = "pipelines"

    stages: AtLeastOne = Field(1, description="pipeline stages")
    layer_split: str = Field(
        "auto",
        description="layers of every stage: auto (by weights), even, measured (by times, taken once per device), or "
        "counts as in 22,20,20,18",
    )
    stage_memory_gib: str | float | None = Field(
        None, description="GiB of weights and KV cache a stage may take, or one number per stage, as in 80,80,40,40"
    )
    transport: Literal["auto", "unix", "tcp", "nccl", "gloo"] = Field(
        "auto",
        description="between stages: unix or tcp sockets alone; nccl or gloo for hidden states; auto is nccl between "
        "GPUs that have it, and sockets otherwise",
    )
    threads: AtLeastOne | None = Field(
        None,
        description="intra-op threads of a stage; on a CPU by default the physical cores that may be used but one, "
        "divided by the stages of a node; on cuda 1",
    )
    stage_cpus: Annotated[float, Field(ge=0)] = Field(0.1, description="Ray CPUs a stage reserves")
    stage_gpus: Annotated[float, Field(ge=0)] = Field(0.0, description="Ray GPUs a stage reserves")
    stage_placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = Field(
        "pack", description="stages on nodes: few or many if possible, one or all different in any case"
    )
    replicas: Annotated[int, Field(ge=1, le=64)] = Field(1, description="pipelines, each with all the stages")
    affinity: Literal["none", "prefix"] = Field(
        "none", description="prefix sends requests that begin alike to the same replica"
    )
    affinity_slack: Annotated[int, Field(ge=0)] = Field(
        4096, description="tokens of work that this replica may have more than the least loaded one"
    )


class ScheduleFields(FieldGroup):
    """What a pipeline holds at once, and how much a step takes."""

    TITLE: ClassVar[str] = "memory and scheduling"

    kv_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = Field(
        "auto",
        description="GiB of KV cache over all stages; auto: what GPUs have left beside weights and steps, 0.5 on CPUs",
    )
    block_size: AtLeastOne = Field(64, description="tokens per KV block")
    prefix_cache: bool = Field(
        True, description="keep the beginnings of texts in KV blocks that are free, for requests that begin alike"
    )
    max_model_len: Annotated[int, Field(ge=2)] | None = Field(
        None, description="tokens of the longest prompt and output together; by default what model and cache hold"
    )
    max_sequences: AtLeastOne = Field(64, description="sequences that one pipeline decodes side by side")
    max_waiting: AtLeastOne = Field(256, description="requests that wait before further ones are answered with 429")
    max_wait: Annotated[float, Field(gt=0)] | None = Field(
        60.0,
        description="seconds a request may be expected to wait for its start before it is answered with 429; tenants "
        "(keys, or with trust_clients the request's user) take turns",
    )
    max_step_rows: AtLeastOne = Field(2048, description="tokens and drafted nodes of one step, at most")
    prefill_chunk: AtLeastOne = Field(512, description="prompt tokens per step, at most")
    max_stall: Annotated[float, Field(gt=0)] = Field(
        0.1, description="seconds that prompt tokens may add to a step while any sequence decodes"
    )


class SpeculationFields(FieldGroup):
    """How the tokens that a step verifies are drafted."""

    TITLE: ClassVar[str] = "speculation"

    method: str = Field("auto", description="speculation method of requests that name none")
    methods: str | list[str] | None = Field(
        None,
        description="methods that requests may name, alone or joined, comma-separated; all by default; that of "
        "method always",
    )
    max_nodes: Annotated[int, Field(ge=0, le=4096)] | None = Field(
        None,
        description="drafted nodes per step of a request that names no number; by default 63 on cuda, which with the "
        "root are a tile of 64 rows, and on a CPU the power of two that saves most time by the measured step times; "
        "auto may draft 64 and chooses how many are worth it",
    )
    heads: str | None = Field(None, description="file of the model's induction heads, for pld-plus-a")
    draft_model: str | None = Field(
        None, description="directory or hub id (or ID@REVISION) of draft-model's small model"
    )
    drafter: str | None = Field(
        None,
        description="directory or hub id (or ID@REVISION) of a drafter that was trained for the model (EAGLE, "
        "ParallelSpec, Medusa, DFlash, P-EAGLE): its method, and a source of auto",
    )
    drafter_layers: str | None = Field(
        None,
        description="layers whose outputs the drafter reads, where its checkpoint names none or the wrong ones: "
        "comma-separated, from 0, -1 is the embedding",
    )
    drafter_options: dict[str, Any] = Field(
        default_factory=dict, description="settings of drafter's trees: depth, beam"
    )
    speculator_actors: Annotated[int, Field(ge=0)] = Field(
        0, description="processes that draft; 0: the router drafts itself"
    )
    speculator_gpus: Annotated[float, Field(ge=0)] = Field(0.0, description="Ray GPUs a speculator actor reserves")
    draft_timeout: Annotated[float, Field(gt=0)] = Field(2.0, description="seconds a draft may take, in actors")


class RetrievalFields(FieldGroup):
    """What requests look up, and which namespaces learn from their answers."""

    TITLE: ClassVar[str] = "retrieval"

    retrieval: str | None = Field(
        None,
        repr=False,  # may hold a password
        description="what requests look up: a snapshot's folder, a store's folder or redis://.. URL, text or JSON "
        "lines, builtin, or none; by default builtin for the default model and none for others",
    )
    retrieval_namespace: Annotated[str, Field(pattern=NAMESPACE_PATTERN)] = Field(
        DEFAULT_NAMESPACE, description="namespace of the store that all requests share, those that name none included"
    )
    retrieval_poll: Annotated[float, Field(gt=0)] = Field(
        2.0, description="seconds between two polls of the store, which also sends hints in between"
    )
    retrieval_cache: str | None = Field(
        None, description="folder on every node for snapshots of the store; in the user's cache by default"
    )
    retrieval_grace: Annotated[float, Field(ge=0, le=31_536_000)] = Field(
        3600.0,
        description="seconds that a version which live texts have superseded stays in the store, and the texts that it "
        "lacks in the log, so that a rollback loses none",
    )
    live: str | list[str] | None = Field(
        None,
        description="namespaces that learn from the answers to their own requests, comma-separated; none by "
        "default; without a store they forget at restart",
    )
    live_tokens: AtLeastOne = Field(200_000, description="tokens of the newest live text looked up beside snapshots")
    live_interval: Annotated[float, Field(gt=0)] = Field(5.0, description="seconds between two reads of live text")
    live_compact_tokens: AtLeastOne = Field(
        1_000_000, description="tokens of live text that become a new snapshot, which is published"
    )


FIRST_GROUPS: tuple[type[FieldGroup], ...] = (
    ModelFields,
    PipelineFields,
    ScalingFields,
    ScheduleFields,
    SpeculationFields,
)
LAST_GROUPS: tuple[type[FieldGroup], ...] = (
    RetrievalFields,
    FailureFields,
    HttpFields,
    AnswerFields,
    LogFields,
    AccessFields,
)

if TYPE_CHECKING:
    AllMethodFields = MethodFields
else:
    AllMethodFields = build_method_fields(
        {name for group in (*FIRST_GROUPS, *LAST_GROUPS) for name in group.model_fields}
    )


class AllFields(
    ModelFields,
    PipelineFields,
    ScalingFields,
    ScheduleFields,
    SpeculationFields,
    AllMethodFields,
    RetrievalFields,
    FailureFields,
    HttpFields,
    AnswerFields,
    LogFields,
    AccessFields,
):
    """The fields of all groups."""


GROUPS: list[type[FieldGroup]] = [*FIRST_GROUPS, AllMethodFields, *LAST_GROUPS]
