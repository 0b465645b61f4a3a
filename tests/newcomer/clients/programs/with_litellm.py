"""litellm: texts, streams, tools and JSON, in this process. Prints what came back as JSON."""

import asyncio
import json
import sys

import litellm

litellm.suppress_debug_info = True
PLACE = {"model": "hosted_vllm/demo", "api_base": sys.argv[1], "api_key": "none", "temperature": 0, "num_retries": 0}
QUESTION = [{"role": "user", "content": "What is 12 plus 7?"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}

said: dict[str, object] = {}
whole = litellm.completion(messages=QUESTION, **PLACE)
said["text"] = whole.choices[0].message.content
said["usage"] = whole.usage.completion_tokens
parts = list(litellm.completion(messages=QUESTION, stream=True, stream_options={"include_usage": True}, **PLACE))
said["streamed"] = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
said["streamed_usage"] = parts[-1].usage.completion_tokens
told = asyncio.run(litellm.acompletion(messages=QUESTION, **PLACE))
said["awaited"] = told.choices[0].message.content
said["as_openai"] = litellm.completion(messages=QUESTION, **PLACE | {"model": "openai/demo"}).choices[0].message.content
said["plain"] = litellm.text_completion(prompt="Once", max_tokens=8, **PLACE | {"model": "openai/demo"}).choices[0].text

form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
asked = [{"role": "user", "content": "Anna is 31 years old."}]
said["json"] = litellm.completion(messages=asked, response_format=form, **PLACE).choices[0].message.content
choice = {"type": "function", "function": {"name": "weather"}}
called = litellm.completion(messages=asked, tools=[TOOL], tool_choice=choice, **PLACE).choices[0].message
said["calls"] = [[call.function.name, call.function.arguments] for call in called.tool_calls]
try:
    litellm.completion(messages=QUESTION, **PLACE | {"temperature": 9})
except litellm.BadRequestError as error:
    said["refused"] = str(error)
print(json.dumps(said))
