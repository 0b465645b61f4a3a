"""openai-agents over chats and responses: streams, and tools with an output type. Prints the results as JSON."""

import asyncio
import json
import sys
from typing import Literal

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI, BadRequestError
from person import ASKED, MODEL, TOO_MANY, Person, weather

CLIENT = AsyncOpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
answers: list[str] = []  # of the tool


def most(n_tokens: int, **settings: object) -> ModelSettings:
    return ModelSettings(temperature=0, max_tokens=n_tokens, parallel_tool_calls=False, **settings)


async def streamed(agent: Agent) -> tuple[str, object]:
    """The text that came in parts, and what the library makes of the whole."""
    run = Runner.run_streamed(agent, ASKED)
    raw = [event.data async for event in run.stream_events() if event.type == "raw_response_event"]
    return "".join(event.delta for event in raw if event.type == "response.output_text.delta"), run.final_output


@function_tool(is_enabled=lambda *_: not answers)  # a random model might call it for ever
def weather_once(city: Literal["Rome", "Oslo"], days: Literal[1, 2, 3]) -> str:
    """The weather of a city."""
    answers.append(weather(city, days))
    return answers[-1]


async def outcome(agent: Agent) -> dict[str, object]:
    """The object that an agent gives at last, and what its tool answered before."""
    answers.clear()
    run = await Runner.run(agent, ASKED)
    return {"object": run.final_output.model_dump(), "tools' answers": [*answers]}


async def results_with(model: object) -> dict[str, object]:
    typed = Agent("typed", model=model, model_settings=most(200), output_type=Person)
    caller = typed.clone(tools=[weather_once])
    forced = typed.clone(tools=[weather_once], model_settings=most(200, tool_choice="required"))
    agents = {"whole": typed, "after a tool": forced, "call or object": caller}
    results = {name: await outcome(agent) for name, agent in agents.items()}
    parts, whole = await streamed(typed)
    results["streamed"] = [whole.model_dump(), json.loads(parts)]
    try:
        await Runner.run(typed.clone(model_settings=most(TOO_MANY)), ASKED)
    except BadRequestError as error:
        results["refused"] = error.code
    return results


async def all_results() -> dict[str, object]:
    models = {"chats": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
    return {name: await results_with(model(MODEL, CLIENT)) for name, model in models.items()}


print(json.dumps(asyncio.run(all_results())))
