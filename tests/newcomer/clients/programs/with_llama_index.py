"""llama-index: texts, streams, tools, objects, an agent with tools and an output type. Prints the results as JSON."""

import asyncio
import json
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from openai import BadRequestError
from person import ASKED, MODEL, QUESTION, TOO_MANY, Person, weather


def model(most: int, **options: object) -> OpenAILike:
    fields = {"is_chat_model": True, "is_function_calling_model": True, "temperature": 0, "context_window": 4096}
    return OpenAILike(
        model=MODEL, api_base=sys.argv[1], api_key="none", max_tokens=most, max_retries=0, **fields, **options
    )


def object_of(answer: object) -> dict[str, object]:
    return Person.model_validate(answer.raw).model_dump()


async def answer_of_an_agent() -> dict[str, object]:
    agent = FunctionAgent(
        llm=model(200), tools=[FunctionTool.from_defaults(weather)], output_cls=Person, initial_tool_choice="weather"
    )
    ran = await agent.run(ASKED)
    return {"calls": [[call.tool_name, call.tool_kwargs] for call in ran.tool_calls], "object": ran.structured_response}


results: dict[str, object] = {}
question, asked = [ChatMessage(QUESTION)], [ChatMessage(ASKED)]
results["text"] = model(24).chat(question).message.content
results["streamed"] = "".join(part.delta or "" for part in model(24).stream_chat(question))

tool = FunctionTool.from_defaults(weather)
caller = model(200, strict=True)
answer = caller.chat_with_tools([tool], chat_history=asked, tool_required=True)
results["calls"] = [[one.tool_name, one.tool_kwargs] for one in caller.get_tool_calls_from_response(answer)]
*_, answer = caller.stream_chat_with_tools([tool], chat_history=asked, tool_required=True)
results["streamed calls"] = [[one.tool_name, one.tool_kwargs] for one in caller.get_tool_calls_from_response(answer)]
results["after a tool"] = caller.predict_and_call([tool], ASKED, tool_required=True).response

results["function"] = object_of(model(200).as_structured_llm(Person).chat(asked))
structured = model(200, should_use_structured_outputs=True).as_structured_llm(Person)
results["schema"] = object_of(structured.chat(asked))
*_, last = structured.stream_chat(asked)
results["schema streamed"] = object_of(last)
results["agent"] = asyncio.run(answer_of_an_agent())
try:
    model(TOO_MANY).chat(question)
except BadRequestError as error:
    results["refused"] = error.code
print(json.dumps(results))
