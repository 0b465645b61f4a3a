"""langchain-openai: texts, streams, bound tools, structured output, a fallback. Prints the results as JSON."""

import json
import sys

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from person import ASKED, MODEL, QUESTION, TOO_MANY, Person, weather


def chat(most: int = 24, **options: object) -> ChatOpenAI:
    fixed = {"base_url": sys.argv[1], "api_key": "none", "temperature": 0, "max_retries": 0}
    return ChatOpenAI(model=MODEL, max_tokens=most, **fixed, **options)


results: dict[str, object] = {}
whole = chat().invoke(QUESTION)
results["text"], results["usage"] = whole.content, whole.usage_metadata
results["streamed"] = "".join(str(part.content) for part in chat(stream_usage=True).stream(QUESTION))
results["speculative"] = chat(extra_body={"speculative": {"enabled": False}}).invoke(QUESTION).content
results["responses"] = chat(use_responses_api=True).invoke(QUESTION).text

caller = chat(200).bind_tools([tool(weather)], tool_choice="weather", strict=True)
asked = HumanMessage("Tell me the weather of Rome for 3 days.")
call = caller.invoke([asked])
results["calls"] = call.tool_calls
streamed = None
for part in caller.stream([asked]):
    streamed = part if streamed is None else streamed + part
results["streamed_calls"] = streamed.tool_calls
outputs = [ToolMessage(weather(**one["args"]), tool_call_id=one["id"]) for one in call.tool_calls]
results["after_the_tool"] = chat().invoke([asked, call, *outputs]).content

for method in ("json_schema", "function_calling"):
    model = chat(200).with_structured_output(Person, method=method, strict=True)
    results[method] = model.invoke(ASKED).model_dump()
fallback = chat(TOO_MANY).with_fallbacks([chat()], exceptions_to_handle=(ContextOverflowError,))
results["fallback"] = fallback.invoke(QUESTION).content
print(json.dumps(results))
