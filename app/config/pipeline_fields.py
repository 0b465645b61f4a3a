"""Fields for the target model: where it comes from, how it is split, and what it holds at once."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.config.field_group import AtLeastOne, FieldGroup, advanced
from app.inputs.default_model import DEFAULT_MODEL


class ModelFields(FieldGroup):
    """The target model and its precision."""

    TITLE: ClassVar[str] = "model"

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


class PipelineFields(FieldGroup):
    """How the model is split into stages, and how many pipelines there are."""

    TITLE: ClassVar[str] = "pipelines"

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


class ScheduleFields(FieldGroup):
    """What a pipeline holds at once, and the size of a step."""

    TITLE: ClassVar[str] = "memory and scheduling"

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
