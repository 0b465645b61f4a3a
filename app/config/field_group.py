"""The base of a group of configuration fields."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from retrieval_store.service.manifest_feed import NAMESPACE

AtLeastOne = Annotated[int, Field(ge=1)]
NAMESPACE_PATTERN = f"^{NAMESPACE.pattern}$"
ADVANCED = "advanced"  # key of a field's JSON schema


class FieldGroup(BaseModel):
    """Fields that ``spectra serve --help`` shows together, under ``TITLE`` and the class's docstring."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)  # a URL may hold a password

    TITLE: ClassVar[str]


def advanced(default: Any, description: str) -> Any:
    """Return a field that only ``--help-all`` shows."""
    made = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**made, description=description, json_schema_extra={ADVANCED: True})
