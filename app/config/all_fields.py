"""All configuration fields, in the groups and the order of the help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.config.field_group import FieldGroup
from app.config.method_fields import MethodFields, build_method_fields
from app.config.pipeline_fields import ModelFields, PipelineFields, ScheduleFields
from app.config.service_fields import AccessFields, FailureFields, HttpFields, LogFields
from app.config.speculation_fields import RetrievalFields, SpeculationFields

FIXED_GROUPS: tuple[type[FieldGroup], ...] = (
    ModelFields,
    PipelineFields,
    ScheduleFields,
    SpeculationFields,
    RetrievalFields,
    HttpFields,
    AccessFields,
    LogFields,
    FailureFields,
)

if TYPE_CHECKING:
    AllMethodFields = MethodFields
else:
    AllMethodFields = build_method_fields({name for group in FIXED_GROUPS for name in group.model_fields})


class AllFields(
    ModelFields,
    PipelineFields,
    ScheduleFields,
    SpeculationFields,
    RetrievalFields,
    HttpFields,
    AccessFields,
    LogFields,
    FailureFields,
    AllMethodFields,
):
    """The fields of all groups."""


GROUPS: tuple[type[FieldGroup], ...] = (*FIXED_GROUPS, AllMethodFields)
