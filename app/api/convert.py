"""From a checked request to what the backend runs: prompt ids and sampling parameters, one job per choice."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jinja2
import msgspec

from app.api.messages import Message
from app.api.schemas import ChatCompletionRequest, CompletionRequest, GenerationRequest
from app.api.service import Settings
from deployments.submission.messages import ModelCard
from engine.errors import PromptTooLongError, RequestError
from engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PLAIN = "autoregressive"  # the method that drafts nothing


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One choice to generate, as `Backend.submit` takes it."""

    index: int  # of the choice in the response: prompt * n + choice
    prompt_ids: list[int]
    params: SamplingParams
    method: str | None
    max_nodes: int | None
    priority: int
    namespace: str = ""
    tenant: str = ""  # whose turn it is in the queue


class Converter:
    """Turns requests into jobs for one model."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, card: ModelCard, settings: Settings) -> None:
        self._tokenizer = tokenizer
        # Some tokenizer.json files carry training-time settings that would cut prompts silently.
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        self._card = card
        self._settings = settings

    async def jobs(self, request: ChatCompletionRequest | CompletionRequest) -> tuple[list[Job], int]:
        """All choices of a request, and the seed they share as the client shall see it.

        Raises:
            RequestError: empty prompt, an id outside the vocabulary, too many choices, a template that refuses.
            PromptTooLongError: prompt and wanted tokens do not fit the context.
        """
        if isinstance(request, ChatCompletionRequest):
            prompts = [await self.encode_chat(request.messages)]
        else:
            self._check_choices(len(request.prompt) * request.n)
            prompts = [await self._prompt_ids(p) for p in request.prompt]
        self.check_ids(request.stop_token_ids, "stop_token_ids")
        self.check_ids(request.logit_bias, "logit_bias")
        # A drawn seed has 53 bits, so that a client whose numbers are doubles can send it back.
        seed = secrets.randbits(53) if request.seed is None else request.seed
        return [
            job for i, prompt in enumerate(prompts) for job in self._prompt_jobs(request, prompt, i * request.n, seed)
        ], seed

    async def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, add_special_tokens: bool = False
    ) -> list[int]:
        """Ids of a conversation under the model's chat template, which writes all special tokens itself.

        Raises:
            RequestError: there is no template, or it refuses these messages.
        """
        if not self._tokenizer.chat_template:
            raise RequestError("this model has no chat template; use /v1/completions", "messages")
        turns = [{"role": m.role, "content": m.content} for m in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except jinja2.TemplateError as error:
            raise RequestError(f"the model's chat template refuses these messages: {error}", "messages") from None
        return await self.encode(str(text), add_special_tokens=add_special_tokens)

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text; long ones are tokenised in a thread (the tokenizer releases the interpreter lock)."""
        backend = self._tokenizer.backend_tokenizer
        if len(text) <= self._settings.thread_chars:
            encoding = backend.encode(text, add_special_tokens=add_special_tokens)
        else:
            encoding = await asyncio.to_thread(backend.encode, text, add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def check_ids(self, ids: Sequence[int] | dict[int, float], param: str) -> None:
        """Every id must be one of the model's; ``param`` is the field they came in.

        Raises:
            RequestError: an id is outside the vocabulary.
        """
        size = self._card.vocab_size
        wrong = next((i for i in ids if not 0 <= i < size), None)
        if wrong is not None:
            raise RequestError(f"{param} holds the token id {wrong}; ids must be 0 to {size - 1}", param)

    def _prompt_jobs(self, request: GenerationRequest, prompt: list[int], first: int, seed: int) -> list[Job]:
        limit = self._token_limit(request, len(prompt))
        params = self._params(request, limit, seed)
        options = request.speculative
        return [
            Job(
                index=first + choice,
                prompt_ids=prompt,
                params=params if choice == 0 else msgspec.structs.replace(params, choice=choice),
                method=options.method if options.enabled else PLAIN,
                max_nodes=options.max_nodes if options.enabled else None,
                priority=request.priority,
                namespace=options.namespace or "",
                tenant=request.user or options.namespace or "",
            )
            for choice in range(request.n)
        ]

    def _params(self, request: GenerationRequest, limit: int, seed: int) -> SamplingParams:
        stop_ids = request.stop_token_ids if request.ignore_eos else [*request.stop_token_ids, *self._card.eos_ids]
        return SamplingParams(
            max_tokens=limit,
            min_tokens=request.min_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=max(0, request.top_k),
            min_p=request.min_p,
            repetition_penalty=request.repetition_penalty,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            logit_bias=request.logit_bias,
            seed=seed % 2**64,
            stop_ids=tuple(dict.fromkeys(stop_ids)),
            stop=tuple(request.stop),
            logprobs=request.logprob_count,
            verification=request.verification,
        )

    def _token_limit(self, request: GenerationRequest, n_prompt: int) -> int:
        """How many tokens may be generated; checks that they fit."""
        room, wanted = self._card.max_model_len - n_prompt, request.token_limit
        if room < (wanted or 1) or room < request.min_tokens:
            raise PromptTooLongError(
                f"the prompt has {n_prompt} tokens and {max(wanted or 1, request.min_tokens)} more are wanted, "
                f"but the context of this model is {self._card.max_model_len} tokens",
                "messages" if isinstance(request, ChatCompletionRequest) else "prompt",
            )
        return wanted or max(request.min_tokens, min(room, self._settings.default_max_tokens))

    async def _prompt_ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            ids = await self.encode(prompt, add_special_tokens=True) if prompt else []
        else:
            ids = prompt
            self.check_ids(ids, "prompt")
        if not ids:
            raise RequestError("prompt is empty; it must have at least one token", "prompt")
        return ids

    def _check_choices(self, wanted: int) -> None:
        if wanted > self._settings.max_choices:
            raise RequestError(
                f"{wanted} choices are wanted (prompts times n); at most {self._settings.max_choices} can be", "n"
            )
