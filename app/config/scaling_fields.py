"""How many pipelines there are where their number follows the load."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from app.config.field_group import FieldGroup


class ScalingFields(FieldGroup):
    """How the number of pipelines follows the load, and how fast."""

    TITLE: ClassVar[str] = "scaling"

    min_replicas: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="pipelines that are always there, where their number follows the load (max_replicas)"
    )
    max_replicas: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="pipelines, at most, of a number that follows the load; instead of replicas"
    )
    scale_up_delay: Annotated[float, Field(ge=1, le=3600)] = Field(
        10.0, description="seconds that requests wait for room before a pipeline is added"
    )
    scale_down_delay: Annotated[float, Field(ge=1, le=86_400)] = Field(
        300.0, description="seconds that what runs has fitted into fewer pipelines before one is given up"
    )
    scale_timeout: Annotated[float, Field(ge=1, le=86_400)] = Field(
        900.0, description="seconds after which a pipeline that is wanted and not there is told of, in log and metrics"
    )
