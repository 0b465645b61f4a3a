"""From a checked body to requests for the backend, one ``engine.request.Request`` per choice."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from copy import copy
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from app.access.caller import Caller
from app.api.requests.conversation import ChatTemplate
from app.api.requests.grants import check_choices, check_logprobs_of_prompts, granted
from app.api.requests.parsing import shorten
from app.api.requests.schemas import Body, ChatCompletionRequest, CompletionRequest, GenerationRequest, TokenizeRequest
from app.api.requests.tokenizing import TextEncoder
from app.api.service import ServiceSettings
from app.api.tools.parts import AnswerForm
from deployments.submission.messages import ModelCard
from engine.errors import PromptTooLongError, RequestError
from engine.request import Request
from engine.sampling.history import MOST_RECENT
from engine.sampling.params import SamplingParams
from engine.scheduling.drafting import AUTOREGRESSIVE
from speculators.methods import reads_prediction

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PROMPT_END = 16  # tokens that spell a mark and the spaces after it
Ids = TypeVar("Ids", bound=Collection[int])


class Converter:
    """Turns HTTP bodies into requests for one model."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, card: ModelCard, settings: ServiceSettings) -> None:
        self._tokenizer = tokenizer
        self._encoder = TextEncoder(tokenizer)
        self._template = ChatTemplate(tokenizer, settings.tool_parser, settings.reasoning_parser)
        self.card = card
        self._settings = settings

    def for_model(self, card: ModelCard) -> Converter:
        """A converter for another model that has the same tokenizer."""
        other = copy(self)
        other.card = card
        return other

    def prepare(self, body: Body, response_id: str, caller: Caller) -> tuple[list[tuple[Request, AnswerForm]], int]:
        """The requests of a body, prompt by prompt, with the form of each one's answer; and the seed of the response.

        Raises:
            StatusError: the caller may not ask for what the body asks for.
            RequestError: a prompt is empty, an id is outside the vocabulary, there are too many choices or
                log-probabilities of prompts, or the chat template refuses the messages.
            PromptTooLongError: a prompt and its limit of tokens exceed the context.
        """
        absent = {name: value for name, value in self._settings.sampling.items() if name not in body.model_fields_set}
        body = body.model_copy(update=absent)
        common = granted(body, caller, self._settings, self.card)
        check_choices(body.n * (1 if isinstance(body, ChatCompletionRequest) else len(body.prompt)), common)
        if isinstance(body, ChatCompletionRequest):
            text = self._template.render(body.messages, body, add_generation_prompt=True)
            prompts = [self._encode(text, "messages", add_special_tokens=False)]  # the template writes them
        else:
            prompts = [self._prompt_ids(prompt, body.add_special_tokens) for prompt in body.prompt]
        prompts = [self._cut(body, prompt) for prompt in prompts]
        check_logprobs_of_prompts(body, prompts)
        # A drawn seed has 53 bits, so that a client whose numbers are doubles can send it back.
        seed = secrets.randbits(53) if body.seed is None else body.seed
        params = self._params(body, seed)
        form = AnswerForm()
        if isinstance(body, ChatCompletionRequest):
            thought = self._template.thought(self._encoder.decode(prompts[0][-PROMPT_END:]))
            form = self._template.answer_form(body, thought, has_form=bool(body.forms))
            params = replace(params, grammar=self._template.grammar(body, body.grammar, thought))
        form = replace(
            form,
            skip_special_tokens=body.skip_special_tokens,
            includes_stop=body.include_stop_str_in_output,
            is_echo_alone=body.token_limit == 0,
        )
        common = replace(common, prediction=self._prediction_ids(body))
        requests: list[tuple[Request, AnswerForm]] = []
        for i, prompt in enumerate(prompts):
            echo = self._echo(body, i, prompt) if isinstance(body, CompletionRequest) and body.echo else ""
            own = replace(params, max_tokens=self._token_limit(body, len(prompt)))
            for choice in range(body.n):
                own = replace(own, choice=choice, prompt_logprobs=None if choice else own.prompt_logprobs)
                request = replace(common, prompt=prompt, params=own, id=f"{response_id}-{len(requests)}")
                requests.append((request, replace(form, echo=echo, call_salt=secrets.token_hex(12))))
        return requests, seed

    def tokenize(self, body: TokenizeRequest) -> list[int]:
        """The ids of a prompt or conversation; raises the errors of ``prepare`` for it."""
        if body.messages is None:
            return self._encode(body.prompt or "", "prompt", add_special_tokens=body.add_special_tokens is not False)
        text = self._template.render(body.messages, body, add_generation_prompt=body.add_generation_prompt)
        return self._encode(text, "messages", add_special_tokens=bool(body.add_special_tokens))

    def decode(self, ids: list[int]) -> str:
        """The text of ids; raises the errors of ``prepare`` for them."""
        self._check_length(ids, "tokens")
        return self._encoder.decode(self._checked_ids(ids, "tokens"))

    def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        return self._encoder.encode(text, param, self.card.max_model_len, add_special_tokens=add_special_tokens)

    def _prompt_ids(self, prompt: str | list[int], add_special_tokens: bool) -> list[int]:
        if not isinstance(prompt, str):
            return self._checked_ids(prompt, "prompt")
        ids = self._encode(prompt, "prompt", add_special_tokens=add_special_tokens)
        if not ids:
            raise RequestError("prompt has no tokens; it must have at least one", "prompt")
        return ids

    def _prediction_ids(self, body: Body) -> list[int]:
        """The ids of the predicted output; none without one.

        Raises:
            RequestError: the drafting method that the body names does not read predictions.
            PromptTooLongError: the prediction cannot fit into the context.
        """
        if body.prediction is None or not body.prediction.content:
            return []
        method = body.speculative.method if body.speculative.enabled else None
        if method and not reads_prediction(method) and method.strip() != AUTOREGRESSIVE:
            raise RequestError(
                f"speculative.method is {shorten(method)}, which does not read a prediction; use auto, or join "
                "prediction to it, as in prediction+suffix",
                "speculative.method",
            )
        ids = self._encode(body.prediction.content, "prediction", add_special_tokens=False)
        self._check_length(ids, "prediction")
        return ids

    def _check_length(self, ids: list[int], param: str) -> None:
        most = self.card.max_model_len
        if len(ids) > most:
            message = f"{param} has {len(ids)} tokens; this model's maximum context length is {most} tokens"
            raise PromptTooLongError(message, param)

    def _echo(self, body: CompletionRequest, number: int, prompt: list[int]) -> str:
        """The prompt that begins the text: as it was sent if it was a text and is whole, otherwise decoded."""
        given = body.prompt[number]
        if isinstance(given, str) and body.truncate_prompt_tokens is None:
            return given
        skips = body.skip_special_tokens
        return str(self._tokenizer.backend_tokenizer.decode(prompt, skip_special_tokens=skips))

    def _checked_ids(self, ids: Ids, param: str) -> Ids:
        """The ids of field ``param``; raises RequestError if one is outside the vocabulary."""
        size = self.card.vocab_size
        if ids and (min(ids) < 0 or max(ids) >= size):
            wrong = next(i for i in ids if not 0 <= i < size)
            raise RequestError(f"{param} holds the token id {wrong}; ids must be 0 to {size - 1}", param)
        return ids

    def _params(self, body: GenerationRequest, seed: int) -> SamplingParams:
        """The parameters of all choices, without their limit of tokens."""
        given_stops = self._checked_ids(body.stop_token_ids, "stop_token_ids")
        stop_ids = given_stops if body.ignore_eos else [*given_stops, *self.card.eos_ids]
        biases = self._checked_ids(body.logit_bias, "logit_bias")
        allowed = tuple(dict.fromkeys(self._checked_ids(body.allowed_token_ids or [], "allowed_token_ids")))
        bad_words = tuple(word for text in body.bad_words for word in self._bad_word(text))
        never = {word[-1] for word in bad_words} | ({*stop_ids} if body.min_tokens else set())
        if not ({*allowed} - never if allowed else len(never) < self.card.vocab_size):
            raise RequestError(
                "allowed_token_ids, bad_words and min_tokens leave no token; allow one that ends no word and no text",
                "allowed_token_ids" if allowed else "bad_words",
            )
        return SamplingParams(
            allowed_ids=allowed,
            bad_words=bad_words,
            min_tokens=body.min_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=max(0, body.top_k),
            min_p=body.min_p,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=biases,
            seed=seed % 2**64,
            stop_ids=tuple(dict.fromkeys(stop_ids)),
            stop=tuple(body.stop),
            logprobs=body.logprob_count,
            prompt_logprobs=body.prompt_logprob_count,
            verification=body.verification,
            grammar=body.grammar,
        )

    def _token_limit(self, body: GenerationRequest, n_prompt: int) -> int:
        """The limit of generated tokens; raises PromptTooLongError if prompt and limit exceed the context."""
        room, limit = self.card.max_model_len - n_prompt, body.token_limit
        least = max(limit or 1, body.min_tokens)
        if room < least:
            raise PromptTooLongError(
                f"This model's maximum context length is {self.card.max_model_len} tokens, and the request needs "
                f"{n_prompt + least}: {n_prompt} of the prompt and {least} of the answer",
                "messages" if isinstance(body, ChatCompletionRequest) else "prompt",
            )
        return least if limit is not None else max(least, min(room, self._settings.default_max_tokens))

    def _bad_word(self, text: str) -> list[tuple[int, ...]]:
        found = self._encoder.word(text)
        if not all(0 < len(ids) <= MOST_RECENT + 1 for ids in found):
            what = f"bad_words has {shorten(text)}; a word must have 1 to {MOST_RECENT + 1} tokens"
            raise RequestError(what, "bad_words")
        return found

    def _cut(self, body: GenerationRequest, prompt: list[int]) -> list[int]:
        """The end of the prompt, as long as ``truncate_prompt_tokens`` says."""
        most = body.truncate_prompt_tokens
        if most == -1:
            most = max(1, self.card.max_model_len - max(body.token_limit or 1, body.min_tokens))
        return prompt if most is None else prompt[-most:]
