"""Reads the sampling defaults that a model's authors recommend."""

from __future__ import annotations

from app.api.requests.parsing import validated
from app.api.requests.schemas import ChatCompletionRequest
from app.config.serve import ServeConfig
from app.inputs.models import texts_path
from engine.errors import ConfigError, RequestError
from engine.model.checkpoint_files import GENERATION_CONFIG, read_generation_config

FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")  # those that vLLM reads


def sampling_defaults(config: ServeConfig) -> dict[str, float]:
    """Return the request fields that the model's generation_config.json sets.

    As in vLLM, ``do_sample`` has no effect. A configured ``default_max_tokens`` replaces ``max_new_tokens``.

    Raises:
        ConfigError: a value is one that no request may have.
        UnsupportedModelError: the file holds JSON that is not an object; a file that is not JSON is ignored.
    """
    path = texts_path(config.model, config.revision)
    found = None if config.generation_config == "none" else read_generation_config(path)
    if found is None:
        return {}
    fields = {name.replace("_new_", "_"): found[name] for name in FIELDS if found.get(name) is not None}
    if "default_max_tokens" in config.model_fields_set:
        fields.pop("max_tokens", None)
    minimal = {"model": "", "messages": [{"role": "user", "content": ""}]}
    try:
        request = validated(ChatCompletionRequest, minimal | fields)
    except RequestError as error:
        reason = str(error).replace("max_tokens", "max_new_tokens")
        raise ConfigError(
            f"{path / GENERATION_CONFIG}: {reason}; start with --generation-config none to ignore the file"
        ) from None
    return {name: getattr(request, name) for name in fields}
