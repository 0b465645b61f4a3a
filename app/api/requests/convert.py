"""From a checked HTTP body to requests for the backend: one ``engine.request.Request`` per choice."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

import jinja2
import msgspec

from app.access.caller import Caller
from app.api.requests.grants import granted
from app.api.requests.parts import Message
from app.api.requests.schemas import MAX_CHOICES, ChatCompletionRequest, CompletionRequest, GenerationRequest
from app.api.requests.tokenizing import TextEncoder
from app.api.service import Settings
from app.telemetry.exchange import current
from deployments.submission.messages import ModelCard
from engine.errors import PromptTooLongError, RequestError
from engine.request import Request
from engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Converter:
    """Turns HTTP bodies into requests for one model."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, card: ModelCard, settings: Settings) -> None:
        self._tokenizer = tokenizer
        self._encoder = TextEncoder(tokenizer)
        self.card = card
        self._settings = settings

    def for_model(self, card: ModelCard) -> Converter:
        """The same for another model that has the same tokenizer."""
        other = copy(self)
        other.card = card
        return other

    def requests(
        self, body: ChatCompletionRequest | CompletionRequest, response_id: str, caller: Caller
    ) -> tuple[list[Request], int]:
        """A request per choice, prompt by prompt, and their common seed as the response reports it.

        Raises:
            AccessError: the caller may not ask for what the body asks for.
            RequestError: a prompt is empty, an id is outside the vocabulary, there are too many choices, or the chat
                template refuses the messages.
            PromptTooLongError: a prompt and its limit of tokens exceed the context.
        """
        common = granted(body, caller, self._settings)
        if isinstance(body, ChatCompletionRequest):
            prompts = [self.encode_chat(body.messages)]
        else:
            self._check_choices(len(body.prompt) * body.n)
            prompts = [self._prompt_ids(p) for p in body.prompt]
        self.check_ids(body.stop_token_ids, "stop_token_ids")
        self.check_ids(body.logit_bias, "logit_bias")
        # A drawn seed has 53 bits, so that a client whose numbers are doubles can send it back.
        seed = secrets.randbits(53) if body.seed is None else body.seed
        requests: list[Request] = []
        exchange, model = current(), self.card.identity.digest
        common = msgspec.structs.replace(
            common, model=model, request_id=exchange.request_id, traceparent=exchange.traceparent
        )
        for prompt in prompts:
            params = self._params(body, self._token_limit(body, len(prompt)), seed)
            for choice in range(body.n):
                own = params if choice == 0 else msgspec.structs.replace(params, choice=choice)
                choice_id = f"{response_id}-{len(requests)}"
                requests.append(msgspec.structs.replace(common, prompt=prompt, params=own, id=choice_id))
        return requests, seed

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, add_special_tokens: bool = False
    ) -> list[int]:
        """Ids of a conversation under the model's chat template, which writes all special tokens itself.

        Raises:
            RequestError: the model has no template, or it refuses the messages.
            PromptTooLongError: the text cannot fit into the context.
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
        return self._encoder.encode(
            str(text), "messages", self.card.max_model_len, add_special_tokens=add_special_tokens
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a prompt; raises PromptTooLongError if it cannot fit into the context."""
        return self._encoder.encode(text, "prompt", self.card.max_model_len, add_special_tokens=add_special_tokens)

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens included.

        Raises:
            RequestError: an id is outside the vocabulary.
            PromptTooLongError: there are more than the context holds.
        """
        if len(ids) > self.card.max_model_len:
            raise PromptTooLongError(
                f"tokens has {len(ids)} ids; it must have at most {self.card.max_model_len}, this model's context",
                "tokens",
            )
        self.check_ids(ids, "tokens")
        return self._encoder.decode(ids)

    def check_ids(self, ids: Sequence[int] | dict[int, float], param: str) -> None:
        """Check that the ids of field ``param`` are in the vocabulary.

        Raises:
            RequestError: an id is outside the vocabulary.
        """
        size = self.card.vocab_size
        if ids and (min(ids) < 0 or max(ids) >= size):
            wrong = next(i for i in ids if not 0 <= i < size)
            raise RequestError(f"{param} holds the token id {wrong}; ids must be 0 to {size - 1}", param)

    def _params(self, body: GenerationRequest, limit: int, seed: int) -> SamplingParams:
        stop_ids = body.stop_token_ids if body.ignore_eos else [*body.stop_token_ids, *self.card.eos_ids]
        return SamplingParams(
            max_tokens=limit,
            min_tokens=body.min_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=max(0, body.top_k),
            min_p=body.min_p,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=body.logit_bias,
            seed=seed % 2**64,
            stop_ids=tuple(dict.fromkeys(stop_ids)),
            stop=tuple(body.stop),
            logprobs=body.logprob_count,
            verification=body.verification,
        )

    def _token_limit(self, body: GenerationRequest, n_prompt: int) -> int:
        """The limit of generated tokens.

        Raises:
            PromptTooLongError: the prompt and the limit exceed the context.
        """
        room, wanted = self.card.max_model_len - n_prompt, body.token_limit
        if room < (wanted or 1) or room < body.min_tokens:
            raise PromptTooLongError(
                f"the prompt has {n_prompt} tokens and {max(wanted or 1, body.min_tokens)} more are wanted, "
                f"but the context of this model is {self.card.max_model_len} tokens",
                "messages" if isinstance(body, ChatCompletionRequest) else "prompt",
            )
        return wanted or max(body.min_tokens, min(room, self._settings.default_max_tokens))

    def _prompt_ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            ids = self.encode(prompt, add_special_tokens=True) if prompt else []
        else:
            ids = prompt
            self.check_ids(ids, "prompt")
        if not ids:
            raise RequestError("prompt is empty; it must have at least one token", "prompt")
        return ids

    def _check_choices(self, wanted: int) -> None:
        if wanted > MAX_CHOICES:
            raise RequestError(f"{wanted} choices are wanted (prompts times n); it must be at most {MAX_CHOICES}", "n")
