"""What those who run a server decide: how long failures may take, and what processes tell."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.config.field_group import FieldGroup


class FailureFields(FieldGroup):
    """How long a part may be silent or gone before another takes over."""

    TITLE: ClassVar[str] = "failures"

    failover: Annotated[float, Field(ge=0)] = Field(
        1.0, description="seconds a lost pipeline has to come back before other replicas take over its requests"
    )
    step_deadline: Annotated[float, Field(gt=0)] = Field(
        10.0, description="seconds a step may take before it counts as hung; at least ten times what is usual"
    )
    stage_timeout: Annotated[float, Field(gt=0)] = Field(
        5.0, description="seconds a stage may leave pings unanswered before it is replaced"
    )
    replace_timeout: Annotated[float, Field(gt=0)] = Field(
        600.0, description="seconds in which a lost stage must be replaced, or else its whole pipeline is"
    )
    standby_stages: Annotated[int, Field(ge=0, le=8)] = Field(
        0,
        description="processes of each pipeline that wait, without weights, to take a lost stage's place; each "
        "reserves what a stage does, its GPU too",
    )
    router_patience: Annotated[float, Field(gt=0)] = Field(
        60.0, description="seconds a request waits for a router that is being replaced before it fails with 503"
    )
    grace: Annotated[float, Field(ge=0)] = Field(
        5.0, description="seconds that running requests get at shutdown, and when router or pipeline are replaced"
    )
    drain: Annotated[float, Field(ge=0, le=3600)] = Field(
        600.0,
        description="seconds that answers may go on at an HTTP process that is being replaced; others take over "
        "what router and pipeline do, but not its connections",
    )


class LogFields(FieldGroup):
    """What every process tells of its work, and of requests."""

    TITLE: ClassVar[str] = "logs and traces"

    log_format: Literal["text", "json"] = Field("text", description="form of every process's log lines")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="log lines below this level are left out"
    )
    access_log: bool = Field(True, description="log a line, of level info, for every request that was served")
    log_prompts: bool = Field(False, description="such a line holds the beginning of the prompt")
    traces: bool = Field(
        False, description="send spans of requests to an OpenTelemetry collector, by OTLP over HTTP (extra traces)"
    )
    otlp_endpoint: str | None = Field(
        None,
        repr=False,  # may hold a password
        description="URL of the collector, as in http://127.0.0.1:4318; by default as OpenTelemetry's own environment "
        "variables say",
    )
