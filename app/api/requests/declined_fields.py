"""Fields of OpenAI's and vLLM's APIs that this server does not honour, with the values that it accepts nevertheless.

An accepted value is neutral: it requests what this server does anyway. ``python -m tools.request_fields`` writes these
tables and the honoured fields into docs/reference/http.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class DeclinedField(NamedTuple):
    """Why a field with another value than a neutral one is refused."""

    neutral: tuple[Any, ...]
    advice: str


def _declined(*names: str, neutral: tuple[Any, ...] = (), advice: str = "leave it out") -> dict[str, DeclinedField]:
    return dict.fromkeys(names, DeclinedField(neutral, advice))


_ENGINE = {
    **_declined("ec_transfer_params", "kv_transfer_params", "mm_processor_kwargs", "vllm_xargs", neutral=({},)),
    **_declined("request_id", advice="send it as the header X-Request-Id"),
}
_SAMPLING = {
    **_ENGINE,
    **_declined("best_of", neutral=(1,), advice="use n"),
    **_declined("guided_decoding_backend", neutral=("auto", "guidance")),
    **_declined("guided_whitespace_pattern", advice="use structured_outputs.whitespace_pattern"),
    **_declined("length_penalty", "stream_interval", neutral=(1,)),
    **_declined("logits_processors", neutral=([],)),
    **_declined("logprob_token_ids", advice="use logprobs"),
    **_declined("repetition_detection"),
    **_declined("return_mm_kwargs", "spaces_between_special_tokens", neutral=(True,)),
    **_declined("return_token_offsets", "use_beam_search", "watermarking", neutral=(False,)),
    **_declined("return_tokens_as_token_ids", neutral=(False,), advice="use return_token_ids"),
    **_declined("routed_experts_prompt_start", neutral=(0,)),
    **_declined("thinking_token_budget", neutral=(-1,), advice="use max_tokens"),
    **_declined("truncation_side", neutral=("left",)),
}
_TEMPLATE = {
    **_declined("chat_template", advice="use chat_template_kwargs"),
    **_declined("continue_final_message", neutral=(False,)),
    **_declined("media_io_kwargs", "mm_processor_kwargs", neutral=({},)),
}

DECLINED: dict[str, dict[str, DeclinedField]] = {
    "chat": {
        **_SAMPLING,
        **_TEMPLATE,
        **_declined("add_generation_prompt", "include_reasoning", neutral=(True,)),
        **_declined("add_special_tokens", "echo", neutral=(False,)),
        **_declined("audio", "moderation", "web_search_options"),
        **_declined("documents", neutral=([],)),
        **_declined("function_call", neutral=("none", "auto"), advice="use tool_choice"),
        **_declined("functions", neutral=([],), advice="use tools"),
        **_declined("modalities", neutral=(["text"],)),
        **_declined("return_prompt_text", neutral=(False,), advice="use return_token_ids"),
        **_declined("verbosity", neutral=("medium",)),
    },
    "completions": {**_SAMPLING, **_declined("prompt_embeds"), **_declined("suffix", neutral=("",))},
    "responses": {
        **_ENGINE,
        **_declined("access_programs", "image", "moderation", "prompt"),
        **_declined("enable_response_messages", neutral=(False,)),
        **_declined("context_management", neutral=([],)),
        **_declined("conversation", "previous_response_id", advice="send the whole conversation as input"),
        **_declined("previous_input_messages", neutral=([],), advice="send them as input"),
        **_declined("previous_response", advice="send its items as input"),
        **_declined("truncation", neutral=("disabled",)),
    },
    "tokenize": {**_TEMPLATE, **_declined("return_token_strs", neutral=(False,), advice="use /detokenize")},
    "tools": _declined("async", "defer_loading", neutral=(False,)),
}
