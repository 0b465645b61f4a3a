"""langchain-openai: texts, streams, bound tools and structured output. Prints the results as JSON."""

import json
import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

MODEL = "SmolLM2-135M-Instruct"


class Person(BaseModel):
    """A person."""

    name: str
    age: int
    city: Literal["Rome", "Oslo", "Lima"]


@tool
def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"rain in {city} for {days} days"


def chat(**options: object) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=sys.argv[1], api_key="none", temperature=0, max_retries=0, **options)


results: dict[str, object] = {}
question = "What is 12 plus 7?"
results["text"] = chat().invoke(question).content
results["streamed"] = "".join(str(part.content) for part in chat(stream_usage=True).stream(question))
results["usage"] = chat().invoke(question).usage_metadata
results["speculative"] = chat(extra_body={"speculative": {"enabled": False}}).invoke(question).content
results["responses"] = chat(use_responses_api=True).invoke(question).text

caller = chat().bind_tools([weather], tool_choice="weather", strict=True)
asked = HumanMessage("Tell me the weather of Rome for 3 days.")
call = caller.invoke([asked])
results["calls"] = call.tool_calls
streamed = None
for part in caller.stream([asked]):
    streamed = part if streamed is None else streamed + part
results["streamed_calls"] = streamed.tool_calls
outputs = [ToolMessage(weather.invoke(one["args"]), tool_call_id=one["id"]) for one in call.tool_calls]
results["after_the_tool"] = chat().invoke([asked, call, *outputs]).content

for method in ("json_schema", "function_calling"):
    model = chat().with_structured_output(Person, method=method, strict=True)
    results[method] = model.invoke("Anna is 31 years old and lives in Rome.").model_dump()
print(json.dumps(results))
