"""instructor fills a pydantic model by tools and by JSON, whole and streamed; prints the results as JSON."""

import json
import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, Field


class Order(BaseModel):
    """An order in a restaurant."""

    dish: Literal["soup", "rice", "cake"]
    guests: int = Field(ge=1, le=12)
    table: Literal["inside", "outside"] | None


results: dict[str, object] = {}
messages = [{"role": "user", "content": "We are 4 guests and would like the soup."}]
fields = {"model": "SmolLM2-135M-Instruct", "messages": messages, "temperature": 0, "max_tokens": 300}
plain = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(plain, mode=mode)
    results[mode.name] = client.create(response_model=Order, max_retries=0, **fields).model_dump()
    *_, last = client.create_partial(response_model=Order, max_retries=0, **fields)
    results[f"{mode.name} in parts"] = last.model_dump(exclude_none=True)
print(json.dumps(results))
