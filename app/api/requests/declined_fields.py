"""Fields of OpenAI's and vLLM's APIs that this server does not honour, with the values that it accepts nevertheless.

An accepted value is neutral: it requests what this server does anyway. ``python -m tools.request_fields`` writes these
tables and the honoured fields into docs/http.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class DeclinedField(NamedTuple):
    """Why a field with another value than a neutral one is refused."""

    neutral: tuple[Any, ...] = ()
    advice: str = ""  # what to do, if it is not to leave the field out


_ENGINE = {
    "ec_transfer_params": DeclinedField(({},)),
    "kv_transfer_params": DeclinedField(({},)),
    "mm_processor_kwargs": DeclinedField(({},)),
    "request_id": DeclinedField(advice="send it as the header X-Request-Id"),
    "vllm_xargs": DeclinedField(({},)),
}
_SAMPLING = _ENGINE | {
    "best_of": DeclinedField((1,), "use n"),
    "guided_decoding_backend": DeclinedField(("auto", "guidance")),
    "guided_whitespace_pattern": DeclinedField(advice="use structured_outputs.whitespace_pattern"),
    "length_penalty": DeclinedField((1,)),
    "logits_processors": DeclinedField(([],)),
    "logprob_token_ids": DeclinedField(advice="use logprobs"),
    "repetition_detection": DeclinedField(),
    "return_mm_kwargs": DeclinedField((True,)),
    "return_token_offsets": DeclinedField((False,)),
    "return_tokens_as_token_ids": DeclinedField((False,), "use return_token_ids"),
    "routed_experts_prompt_start": DeclinedField((0,)),
    "spaces_between_special_tokens": DeclinedField((True,)),
    "stream_interval": DeclinedField((1,)),
    "thinking_token_budget": DeclinedField((-1,), "use max_tokens"),
    "truncation_side": DeclinedField(("left",)),
    "use_beam_search": DeclinedField((False,)),
    "watermarking": DeclinedField((False,)),
}
_TEMPLATE = {
    "chat_template": DeclinedField(advice="use chat_template_kwargs"),
    "continue_final_message": DeclinedField((False,)),
    "media_io_kwargs": DeclinedField(({},)),
    "mm_processor_kwargs": DeclinedField(({},)),
}

DECLINED: dict[str, dict[str, DeclinedField]] = {
    "chat": _SAMPLING
    | _TEMPLATE
    | {
        "add_generation_prompt": DeclinedField((True,)),
        "add_special_tokens": DeclinedField((False,)),
        "audio": DeclinedField(),
        "documents": DeclinedField(([],)),
        "echo": DeclinedField((False,)),
        "function_call": DeclinedField(("none", "auto"), "use tool_choice"),
        "functions": DeclinedField(([],), "use tools"),
        "include_reasoning": DeclinedField((True,)),
        "modalities": DeclinedField((["text"],)),
        "moderation": DeclinedField(),
        "return_prompt_text": DeclinedField((False,), "use return_token_ids"),
        "verbosity": DeclinedField(("medium",)),
        "web_search_options": DeclinedField(),
    },
    "completions": _SAMPLING | {"prompt_embeds": DeclinedField(), "suffix": DeclinedField(("",))},
    "responses": _ENGINE
    | {
        "access_programs": DeclinedField(),
        "background": DeclinedField((False,)),
        "context_management": DeclinedField(([],)),
        "conversation": DeclinedField(advice="send the whole conversation as input"),
        "enable_response_messages": DeclinedField((False,)),
        "image": DeclinedField(),
        "moderation": DeclinedField(),
        "previous_input_messages": DeclinedField(([],), "send them as input"),
        "previous_response": DeclinedField(advice="send its items as input"),
        "previous_response_id": DeclinedField(advice="send the whole conversation as input"),
        "prompt": DeclinedField(),
        "truncation": DeclinedField(("disabled",)),
    },
    "tokenize": _TEMPLATE | {"return_token_strs": DeclinedField((False,), "use /detokenize")},
}
