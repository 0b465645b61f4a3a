"""Fields for the server around the model: HTTP, access, logs, failures."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.config.field_group import AtLeastOne, FieldGroup, advanced


class HttpFields(FieldGroup):
    """What clients may send, and what answers contain."""

    TITLE: ClassVar[str] = "HTTP"

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


class AccessFields(FieldGroup):
    """Who may send requests. Without keys and header all clients are one tenant."""

    TITLE: ClassVar[str] = "access"

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


class LogFields(FieldGroup):
    """What processes log, and where traces go."""

    TITLE: ClassVar[str] = "logs and traces"

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


class FailureFields(FieldGroup):
    """How long a part may be silent or gone before it is replaced."""

    TITLE: ClassVar[str] = "failures"

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
