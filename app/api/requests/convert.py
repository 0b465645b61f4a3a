"""From a checked HTTP body to requests for the backend: one ``engine.request.Request`` per choice."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

import msgspec

from app.access.caller import Caller
from app.api.requests.conversation import ChatTemplate, Extras
from app.api.requests.echoes import check_logprobs_of_prompts
from app.api.requests.grants import granted
from app.api.requests.parsing import shorten
from app.api.requests.parts import ChatMessage
from app.api.requests.predictions import prediction_ids
from app.api.requests.schemas import MAX_CHOICES, ChatCompletionRequest, CompletionRequest, GenerationRequest
from app.api.requests.tokenizing import TextEncoder
from app.api.service import ServiceSettings
from app.api.tools.answer import AnswerFormat
from app.telemetry.exchange import current
from deployments.submission.messages import ModelCard
from engine.errors import PromptTooLongError, RequestError
from engine.grammar.grammar import Thought
from engine.request import Request
from engine.sampling.history import MOST_RECENT
from engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


PROMPT_END = 16  # tokens that spell a mark and the spaces after it


class Converter:
    """Turns HTTP bodies into requests for one model."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, card: ModelCard, settings: ServiceSettings) -> None:
        self._tokenizer = tokenizer
        self._encoder = TextEncoder(tokenizer)
        self._template = ChatTemplate(tokenizer, settings.tool_parser, settings.reasoning_parser)
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
            RequestError: a prompt is empty, an id is outside the vocabulary, there are too many choices or
                log-probabilities of prompts, or the chat template refuses the messages.
            PromptTooLongError: a prompt and its limit of tokens exceed the context.
        """
        absent = {name: value for name, value in self._settings.sampling.items() if name not in body.model_fields_set}
        body = body.model_copy(update=absent)
        common = granted(body, caller, self._settings, self.card)
        if isinstance(body, ChatCompletionRequest):
            extras = Extras(body.offered, body.template_variables)
            self._check_choices(body.n, common)
            prompts = [self.encode_chat(body.messages, extras)]
        else:
            self._check_choices(len(body.prompt) * body.n, common)
            prompts = [self._prompt_ids(p, body.add_special_tokens) for p in body.prompt]
        prompts = [self._cut(body, prompt) for prompt in prompts]
        check_logprobs_of_prompts(body, prompts)
        self.check_ids(body.stop_token_ids, "stop_token_ids")
        self.check_ids(body.logit_bias, "logit_bias")
        self.check_ids(body.allowed_token_ids or (), "allowed_token_ids")
        bad_words = tuple(word for text in body.bad_words for word in self._bad_word(text))
        # A drawn seed has 53 bits, so that a client whose numbers are doubles can send it back.
        seed = secrets.randbits(53) if body.seed is None else body.seed
        requests: list[Request] = []
        exchange, model = current(), self.card.identity.digest
        method = body.speculative.method if body.speculative.enabled else None
        predicted = prediction_ids(body.prediction, method, self._encoder, self.card.max_model_len)
        common = msgspec.structs.replace(
            common, prediction=predicted, model=model, request_id=exchange.request_id, traceparent=exchange.traceparent
        )
        for prompt in prompts:
            params = self._params(body, self._token_limit(body, len(prompt)), seed, bad_words)
            if isinstance(body, ChatCompletionRequest):
                grammar = self._template.grammar(body, body.grammar, self._thought(prompt))
                params = msgspec.structs.replace(params, grammar=grammar)
            for choice in range(body.n):
                own = msgspec.structs.replace(params, choice=choice, prompt_logprobs=None) if choice else params
                choice_id = f"{response_id}-{len(requests)}"
                requests.append(msgspec.structs.replace(common, prompt=prompt, params=own, id=choice_id))
        return requests, seed

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        extras: Extras | None = None,
        *,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """Ids of a conversation under the model's chat template, which writes all special tokens itself.

        Raises:
            RequestError: the model has no template, or it refuses the messages or knows nothing of what ``extras`` has.
            PromptTooLongError: the text cannot fit into the context.
        """
        text = self._template.render(messages, extras or Extras(), add_generation_prompt=add_generation_prompt)
        return self._encoder.encode(text, "messages", self.card.max_model_len, add_special_tokens=add_special_tokens)

    def reading(self, body: ChatCompletionRequest | CompletionRequest, prompt: list[int]) -> AnswerFormat | None:
        """The parts that an answer may have in addition to content; None: its text is content as it is."""
        if not isinstance(body, ChatCompletionRequest):
            return None
        return self._template.reading(body, self._thought(prompt), has_form=bool(body.forms))

    def _thought(self, prompt: list[int]) -> Thought | None:
        """The reasoning that the answer may begin with."""
        end = self._encoder.decode(prompt[-PROMPT_END:]) if self._template.has_reasoning else ""
        return self._template.thought(end)

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
                f"tokens has {len(ids)} ids; this model's maximum context length is {self.card.max_model_len} tokens",
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

    def _params(
        self, body: GenerationRequest, limit: int, seed: int, bad_words: tuple[tuple[int, ...], ...]
    ) -> SamplingParams:
        stop_ids = body.stop_token_ids if body.ignore_eos else [*body.stop_token_ids, *self.card.eos_ids]
        allowed = tuple(dict.fromkeys(body.allowed_token_ids or ()))
        never = {word[-1] for word in bad_words} | ({*stop_ids} if body.min_tokens else set())
        if not ({*allowed} - never if allowed else len(never) < self.card.vocab_size):
            raise RequestError(
                "allowed_token_ids, bad_words and min_tokens leave no token; allow one that ends no word and no text",
                "allowed_token_ids" if allowed else "bad_words",
            )
        return SamplingParams(
            allowed_ids=allowed,
            bad_words=bad_words,
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
            prompt_logprobs=body.prompt_logprob_count,
            verification=body.verification,
            grammar=body.grammar,
        )

    def _token_limit(self, body: GenerationRequest, n_prompt: int) -> int:
        """The limit of generated tokens.

        Raises:
            PromptTooLongError: the prompt and the limit exceed the context.
        """
        room, limit = self.card.max_model_len - n_prompt, body.token_limit
        least = max(limit or 1, body.min_tokens)
        if room < least:
            raise PromptTooLongError(
                f"This model's maximum context length is {self.card.max_model_len} tokens, and the request needs "
                f"{n_prompt + least}: {n_prompt} of the prompt and {least} of the answer; shorten one of them",
                "messages" if isinstance(body, ChatCompletionRequest) else "prompt",
            )
        return least if limit is not None else max(least, min(room, self._settings.default_max_tokens))

    def _bad_word(self, text: str) -> list[tuple[int, ...]]:
        found = self._encoder.word(text)
        if not all(0 < len(ids) <= MOST_RECENT + 1 for ids in found):
            raise RequestError(
                f"bad_words has {shorten(text)}; a word must have 1 to {MOST_RECENT + 1} tokens", "bad_words"
            )
        return found

    def _cut(self, body: GenerationRequest, prompt: list[int]) -> list[int]:
        """The end of a prompt that the request wants to keep."""
        most = body.truncate_prompt_tokens
        if most == -1:
            most = max(1, self.card.max_model_len - max(body.token_limit or 1, body.min_tokens))
        return prompt if most is None else prompt[-most:]

    def _prompt_ids(self, prompt: str | list[int], add_special_tokens: bool) -> list[int]:
        if not isinstance(prompt, str):
            self.check_ids(prompt, "prompt")
            return prompt
        ids = self.encode(prompt, add_special_tokens=add_special_tokens)
        if not ids:
            raise RequestError("prompt has no tokens; it must have at least one", "prompt")
        return ids

    def _check_choices(self, wanted: int, common: Request) -> None:
        most = 1 if common.trace else MAX_CHOICES  # a whole answer's trace is made at one go
        if wanted > most:
            why = " with speculative.trace" if common.trace else ""
            raise RequestError(f"{wanted} choices are wanted (prompts times n); it must be at most {most}{why}", "n")
