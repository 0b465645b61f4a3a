"""The sampling defaults that a model's authors recommend."""

from __future__ import annotations

from app.api.requests.parsing import validated
from app.api.requests.schemas import ChatCompletionRequest
from app.config.serve import ServeConfig
from app.inputs.models import texts_path
from engine.errors import ConfigError, RequestError
from engine.model.checkpoint_files import GENERATION_CONFIG, read_generation_config

FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")  # those that vLLM takes


def sampling_defaults(config: ServeConfig) -> dict[str, float]:
    """Values of request fields as the model's generation_config.json has them, without those that it leaves out.

    As in vLLM, ``do_sample`` has no effect. A ``default_max_tokens`` of the configuration replaces ``max_new_tokens``.

    Raises:
        ConfigError: no request may have one of the values.
        UnsupportedModelError: the file holds JSON, but no object; a file that is no JSON is ignored.
    """
    path = texts_path(config.model, config.revision)
    found = None if config.generation_config == "none" else read_generation_config(path)
    if found is None:
        return {}
    fields = {name.replace("_new_", "_"): found[name] for name in FIELDS if found.get(name) is not None}
    if "default_max_tokens" in config.model_fields_set:
        fields.pop("max_tokens", None)
    try:
        request = validated(
            ChatCompletionRequest, {"model": "", "messages": [{"role": "user", "content": ""}]} | fields
        )
    except RequestError as error:
        reason = str(error).replace("max_tokens", "max_new_tokens")
        raise ConfigError(
            f"{path / GENERATION_CONFIG}: {reason}; start with --generation-config none to ignore the file"
        ) from None
    return {name: getattr(request, name) for name in fields}
