"""litellm: texts, streams, tools with an output type, fallbacks on context errors. Prints the results as JSON."""

import json
import sys

import litellm
from person import ASKED, MODEL, QUESTION, TOO_MANY, Person

WEATHER = {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}
PARAMETERS = {"type": "object", "properties": WEATHER, "required": [*WEATHER], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": PARAMETERS}}
SERVER = {"model": f"hosted_vllm/{MODEL}", "api_base": sys.argv[1], "api_key": "none", "num_retries": 0}


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def ask(question: str, **fields: object) -> object:
    return litellm.completion(messages=chat(question), **SERVER | {"temperature": 0, "max_tokens": 200} | fields)


def joined(chunks: object) -> object:
    """The whole answer of a stream."""
    return litellm.stream_chunk_builder(list(chunks))


def calls_of(answer: object) -> list[object]:
    """Names and arguments of the calls in an answer."""
    called = [call.function for call in answer.choices[0].message.tool_calls or []]
    return [[call.name, json.loads(call.arguments)] for call in called]


def object_of(answer: object) -> dict[str, object]:
    """The object that an answer is, checked against the class."""
    return Person.model_validate_json(answer.choices[0].message.content).model_dump()


litellm.suppress_debug_info = True
results: dict[str, object] = {}
whole = ask(QUESTION, max_tokens=24)
results["text"], results["usage"] = whole.choices[0].message.content, whole.usage.completion_tokens
results["streamed"] = joined(ask(QUESTION, max_tokens=24, stream=True)).choices[0].message.content
results["provider openai"] = ask(QUESTION, max_tokens=24, model=f"openai/{MODEL}").choices[0].message.content

required = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
results["calls"] = calls_of(ask(ASKED, **required))
results["streamed calls"] = calls_of(joined(ask(ASKED, stream=True, **required)))
results["object"] = object_of(ask(ASKED, response_format=Person))
results["streamed object"] = object_of(joined(ask(ASKED, stream=True, response_format=Person)))
results["object after tools"] = object_of(ask(ASKED, response_format=Person, tools=[TOOL], tool_choice="none"))
either = ask(ASKED, response_format=Person, tools=[TOOL])
results["calls or object"] = calls_of(either) or object_of(either)

long = {"model_name": "long", "litellm_params": SERVER | {"max_tokens": 24}}
short = {"model_name": "short", "litellm_params": SERVER | {"max_tokens": TOO_MANY}}
alone, router = litellm.Router([short]), litellm.Router([short, long], context_window_fallbacks=[{"short": ["long"]}])
try:
    alone.completion("short", chat(QUESTION))
except litellm.ContextWindowExceededError as error:
    results["refused"] = error.status_code
results["fallback"] = router.completion("short", chat(QUESTION), temperature=0).choices[0].message.content
print(json.dumps(results))
