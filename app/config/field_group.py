"""What groups of fields have in common."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from retrieval_store.service.manifest_feed import NAMESPACE

AtLeastOne = Annotated[int, Field(ge=1)]
NAMESPACE_PATTERN = f"^{NAMESPACE.pattern}$"


class FieldGroup(BaseModel):
    """Fields that ``spectra serve --help`` shows together."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)  # a URL may hold a password

    TITLE: ClassVar[str]
