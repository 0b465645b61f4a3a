"""pydantic-ai: texts, streams, agents with tools and an output type, a fallback model. Prints the results as JSON."""

import json
import sys

from person import ASKED, MODEL, QUESTION, TOO_MANY, Person, weather
from pydantic_ai import Agent, ModelContextWindowExceededError, NativeOutput, RunContext, ToolDefinition, ToolOutput
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=sys.argv[1], api_key="none")


def model(most: int) -> OpenAIChatModel:
    settings = {"temperature": 0, "max_tokens": most, "parallel_tool_calls": False}
    return OpenAIChatModel(MODEL, provider=PROVIDER, settings=settings)


async def until_called(context: RunContext[None], tool: ToolDefinition) -> ToolDefinition | None:
    """The tool, until it was called once: a random model might call it for ever."""
    return tool if context.run_step == 1 else None


def answers_of_tools(run: object) -> list[object]:
    parts = [part for message in run.all_messages() for part in message.parts]
    return [part.content for part in parts if part.part_kind == "tool-return" and part.tool_name == "weather"]


results: dict[str, object] = {}
texts = Agent(model(24))
with texts.run_stream_sync(QUESTION) as stream:
    results["streamed"] = "".join(stream.stream_text(delta=True))
whole = texts.run_sync(QUESTION)
results["text"], results["usage"] = whole.output, whole.usage.output_tokens

for output in (ToolOutput(Person), NativeOutput(Person, strict=True)):
    name = type(output).__name__
    typed = Agent(model(200), output_type=output)
    results[name] = typed.run_sync(ASKED).output.model_dump()
    with typed.run_stream_sync(ASKED) as stream:
        results[f"{name} streamed"] = stream.get_output().model_dump()
    caller = Agent(model(200), output_type=output)
    caller.tool_plain(weather, prepare=until_called, strict=True)
    run = caller.run_sync(ASKED)  # in the first step the model calls or answers
    results[f"{name} with tools"] = run.output.model_dump()
    results[f"{name} tools' answers"] = answers_of_tools(run)

short, long = model(TOO_MANY), model(24)
try:
    Agent(short).run_sync(QUESTION)
except ModelContextWindowExceededError as error:
    results["refused"] = error.status_code
fallback = FallbackModel(short, long, fallback_on=(ModelContextWindowExceededError,))
results["fallback"] = Agent(fallback).run_sync(QUESTION).output
print(json.dumps(results))
