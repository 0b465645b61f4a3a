"""The HTTP application with an engine in this process, on a tiny model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from transformers import PreTrainedTokenizerFast

from app.access.caller import AccessOptions
from app.api.application import create_app
from app.api.http import Api
from app.api.service import ServiceSettings
from deployments.submission.messages import Health, ModelCard
from engine.events import StepEvent
from engine.loop import Engine
from engine.request import Request
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from tests.support.engines import make_engine


class EngineBackend:
    """Implements `app.api.service.Backend`."""

    def __init__(self, engine: Engine, card: ModelCard) -> None:
        self._engine = engine
        self.model_card = card
        self.counted = CollectorRegistry()

    async def submit(self, request: Request) -> AsyncIterator[StepEvent]:
        return self._events(replace(request, method=request.method or "auto"))

    async def _events(self, request: Request) -> AsyncIterator[StepEvent]:
        own = self._engine.submit(request)
        try:
            while True:
                for seq, event in self._engine.step():
                    assert seq == own
                    yield event
                    if event.finish_reason is not None:
                        return
                await asyncio.sleep(0)
        finally:
            self._engine.cancel(own)

    async def check_ready(self) -> None: ...

    async def health(self) -> Health:
        return Health(ok=True)

    async def metrics_text(self) -> str:
        return ""


@asynccontextmanager
async def over_engine(
    checkpoint: Path, tokenizer: PreTrainedTokenizerFast, context: int = 400
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an edge whose engine has ``context`` tokens of context."""
    target = LocalTarget.load(TargetOptions(str(checkpoint), kv_bytes=1 << 22), checkpoint)
    spec = target.info.spec
    limits = {"max_model_len": context, "vocab_size": spec.vocab_size, "eos_ids": spec.eos_ids}
    limits |= {"max_nodes": 64, "auto_nodes": 64, "limit_nodes": 256}
    backend = EngineBackend(make_engine(target), ModelCard(name="tiny", method="auto", **limits))
    app = create_app(Api(backend, tokenizer, ServiceSettings()), AccessOptions(trust_clients=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://edge") as client:
        yield client
