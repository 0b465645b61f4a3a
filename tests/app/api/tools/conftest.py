"""A server whose model has the chat template and the marks of any family, and answers what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import msgspec
import openai
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from app.access.options import AccessOptions
from app.api.application import create_app
from app.api.http import Api
from app.api.service import Settings
from tests.app.conftest import ScriptedBackend, listening
from tests.support.tiny_models import tiny_tokenizer

MARKS = ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"]  # special tokens in these families' vocabularies

Serving = Callable[..., tuple[httpx.AsyncClient, ScriptedBackend]]


def edge_of(template: str | dict, **settings: object) -> tuple[object, ScriptedBackend]:
    """An application and its backend, for a model with this template."""
    copied = Tokenizer.from_str(tiny_tokenizer(400).backend_tokenizer.to_str())
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=copied, bos_token="<|bos|>", eos_token="<|end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS})
    tokenizer.chat_template = template
    backend = ScriptedBackend(tokenizer)
    backend.model_card = msgspec.structs.replace(backend.model_card, max_model_len=8192, vocab_size=len(tokenizer))
    settings = {"default_max_tokens": 2000} | settings
    return create_app(Api(backend, tokenizer, Settings(**settings)), AccessOptions()), backend


@pytest.fixture
def serving() -> Serving:
    """Makes a client of such a server, and its backend."""

    def make(template: str | dict, **settings: object) -> tuple[httpx.AsyncClient, ScriptedBackend]:
        app, backend = edge_of(template, **settings)
        return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://edge"), backend

    return make


@contextmanager
def client_of(template: str, answer: str, **settings: object) -> Iterator[openai.OpenAI]:
    """OpenAI's client of such a server, over HTTP, whose model writes `answer`."""
    app, backend = edge_of(template, **settings)
    backend.answer = answer
    with listening(app) as url, openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        yield client
