"""The edge of an ingress replica, built in its process."""

from __future__ import annotations

from dataclasses import dataclass

from app.api.edge import Edge
from app.api.http import Api
from app.api.service import Settings
from app.inputs.tokenizers import load_tokenizer
from deployments.ingress.client import RouterClient
from engine.model.resolve import resolve


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """What an ingress replica builds its edge from."""

    tokenizer: str  # directory or hub id
    version: str
    default_max_tokens: int
    max_body_bytes: int


def make_edge(client: RouterClient, options: EdgeOptions) -> Edge:
    """The edge of one ingress replica; runs in its process."""
    tokenizer = load_tokenizer(resolve(options.tokenizer))
    settings = Settings(
        version=options.version,
        max_body_bytes=options.max_body_bytes,
        default_max_tokens=options.default_max_tokens,
    )
    return Edge(Api(client, tokenizer, settings))
