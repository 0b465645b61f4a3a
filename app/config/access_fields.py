"""Who may ask for what: keys, a gateway's header, or clients that are trusted."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from app.config.field_group import FieldGroup


class AccessFields(FieldGroup):
    """Who may ask for what; without keys and header all clients are one tenant."""

    TITLE: ClassVar[str] = "access"

    api_keys: str | None = Field(
        None,
        description="file of keys, as `spectra keys new` writes it, read again when it changes; then requests need a "
        "key (Authorization: Bearer KEY)",
    )
    tenant_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] | None = Field(
        None,
        description="header in which a gateway names the tenant of a request; only the gateway may then reach this",
    )
    trust_clients: bool = Field(
        False,
        description="what clients say of priority, user (the tenant in the queue) and namespace counts, without a key",
    )
    open_metrics: bool = Field(
        False, description="/metrics needs neither an admin's key nor the gateway's header, for scrapers inside"
    )
    cors_origins: str | list[str] | None = Field(
        None,
        description="origins whose pages may ask, comma-separated, as in https://chat.example.com, or *; else none",
    )
