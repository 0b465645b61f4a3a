"""Configuration fields for the settings of the drafting methods, built from the methods themselves."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from app.config.field_group import FieldGroup
from engine.errors import ConfigError
from speculators.methods import settings_sections
from speculators.settings import Settings

BOUNDS = {"at_least": "ge", "above": "gt", "at_most": "le", "below": "lt"}  # of a setting -> pydantic's name


class SettingsFields(BaseModel):
    """The settings of one section; unknown ones are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    KIND: ClassVar[type[Settings]]

    @model_validator(mode="after")
    def _check(self) -> SettingsFields:
        try:
            self.settings()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def given(self) -> dict[str, Any]:
        """Return the settings that are not left at their defaults."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def settings(self, **more: Any) -> Settings:
        """Return the settings that a speculator takes; ``more`` are values that the configuration does not hold."""
        return self.KIND(**self.given | more)


def _section_fields(kind: type[Settings]) -> type[SettingsFields]:
    """Return a model with the fields of a settings class, with their bounds and descriptions."""
    hints = get_type_hints(kind)
    made: dict[str, Any] = {}
    for one in fields(kind):
        if "description" in one.metadata:
            default = {"default_factory": dict} if one.default is MISSING else {"default": one.default}
            bounds = {BOUNDS[name]: one.metadata[name] for name in BOUNDS if name in one.metadata}
            made[one.name] = hints[one.name], Field(description=one.metadata["description"], **default, **bounds)
    model: type[SettingsFields] = create_model(f"{kind.__name__}Fields", __base__=SettingsFields, **made)
    model.KIND = kind
    return model


SECTIONS = {name: _section_fields(section.settings) for name, section in settings_sections().items()}


class _MethodFields(FieldGroup):
    """JSON objects; docs/methods lists the keys of every method."""

    TITLE: ClassVar[str] = "settings of methods"


if TYPE_CHECKING:
    MethodFields = _MethodFields
else:
    MethodFields = create_model(
        "MethodFields",
        __base__=_MethodFields,
        __doc__=_MethodFields.__doc__,
        **{
            name: (SECTIONS[name], Field(default_factory=SECTIONS[name], description=section.description))
            for name, section in settings_sections().items()
        },
    )
