"""Edges whose model has the chat template and the marks of any family."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import openai
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from app.access.caller import AccessOptions
from app.api.application import create_app
from app.api.http import Api
from app.api.service import ServiceSettings
from tests.app.api.tools.chat_templates import OF_FAMILY, QWEN_3
from tests.app.conftest import ANSWER, ScriptedBackend, listening
from tests.support.recorded_calls import RecordedOutput
from tests.support.tiny_models import tiny_tokenizer
from tests.support.waiting import LIMIT_S

MARKS = ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"]  # special tokens in these families' vocabularies


def edge_of(template: Any, answer: str = ANSWER, **settings: Any) -> tuple[object, ScriptedBackend]:
    """An application and its backend, for a model with this template that writes ``answer``."""
    copied = Tokenizer.from_str(tiny_tokenizer(400).backend_tokenizer.to_str())
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=copied, bos_token="<|bos|>", eos_token="<|end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS})
    tokenizer.chat_template = template
    backend = ScriptedBackend(tokenizer)
    backend.answer = answer
    backend.model_card = msgspec.structs.replace(backend.model_card, max_model_len=8192, vocab_size=len(tokenizer))
    settings = {"default_max_tokens": 2000} | settings
    return create_app(Api(backend, tokenizer, ServiceSettings(**settings)), AccessOptions()), backend


@contextmanager
def answering(answer: str | RecordedOutput, template: str | None = None, **settings: Any) -> Iterator[openai.OpenAI]:
    """OpenAI's client of a server whose model writes ``answer``; a recorded answer comes from a model of its family."""
    if isinstance(answer, RecordedOutput):
        template = QWEN_3 if answer.family == "hermes" else OF_FAMILY[answer.family]
        answer = answer.text
    app, _ = edge_of(template, answer, **settings)
    with (
        listening(app) as url,
        openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=LIMIT_S) as client,
    ):
        yield client
