"""Configuration fields for the settings of the drafting methods, built from the methods themselves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from app.config.fields import FieldGroup, FixedFields, advanced
from engine.errors import ConfigError
from speculators.methods import BUILT_IN, all_methods, catalogue, settings_sections
from speculators.settings import Settings

RESERVED = (
    *("host", "port", "ray_address", "tls_cert", "tls_key", "help", "help_all"),  # flags that are no fields
    *("section", "stage_device", "served_names", "served_name", "least_pipelines", "most_pipelines", "stage_threads"),
    *("draft_nodes", "draft_model_settings", "live_namespaces", "allowed_methods", "origins"),  # of ``ServeConfig``
)
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

    def settings(self) -> Settings:
        """Return the settings that a speculator takes."""
        return self.KIND(**self.given)


def _build_section(kind: type[Settings]) -> type[SettingsFields]:
    """Return a model with the fields of a settings class, with their bounds and descriptions."""
    hints = get_type_hints(kind)
    made: dict[str, Any] = {}
    for one in fields(kind):
        if "description" in one.metadata:
            bounds = {BOUNDS[name]: one.metadata[name] for name in BOUNDS if name in one.metadata}
            field = Field(description=one.metadata["description"], default=one.default, **bounds)
            made[one.name] = hints[one.name], field
    model: type[SettingsFields] = create_model(f"{kind.__name__}Fields", __base__=SettingsFields, **made)
    model.KIND = kind
    return model


SECTIONS: dict[str, type[SettingsFields]] = {}  # by name; ``build_method_fields`` fills it


class MethodFields(FieldGroup, title="settings of methods"):
    """A JSON object per method or family of methods."""


def build_method_fields() -> type[MethodFields]:
    """Return the group with a field per section. An added method whose section cannot be a field is refused."""
    given: dict[str, Any] = {}
    for name, section in settings_sections().items():
        try:
            if name in FixedFields.model_fields or name in RESERVED or hasattr(FieldGroup, name):
                raise ValueError(f"its section {name!r} is the name of a field or a flag")
            SECTIONS[name] = _build_section(section.settings)
        except Exception as error:
            methods = [one for one in all_methods().values() if one.settings_section == name]
            if not methods or methods[0] in BUILT_IN:
                raise
            for method in methods:
                catalogue().refuse(method.name, str(error))
            continue
        given[name] = SECTIONS[name], advanced(SECTIONS[name], section.description)
    return create_model("AllMethodFields", __base__=MethodFields, __doc__=MethodFields.__doc__, **given)
