"""What /v1/models says of a model."""

from __future__ import annotations

from typing import Any

from app.access.caller import Caller
from deployments.submission.messages import ModelCard


def model_fields(card: ModelCard, name: str, caller: Caller) -> dict[str, Any]:
    """A model under one of its names, and what the caller may ask of its speculation."""
    return {
        "id": name,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "root": card.name,
        "max_model_len": card.max_model_len,
        "revision": card.identity.revision or None,
        "model_hash": card.identity.weights or None,
        "tokenizer_hash": card.identity.tokenizer or None,
        "speculative": _speculative(card, caller),
    }


def _speculative(card: ModelCard, caller: Caller) -> dict[str, Any]:
    most = card.limit_nodes if caller.max_nodes is None else min(card.limit_nodes, caller.max_nodes)
    return {
        "method": card.method,
        "methods": [method for method in card.methods if caller.may_name(method)],
        "max_nodes": min(card.max_nodes, most),
        "limit_nodes": most,
        "trace": caller.is_admin,
    }
