"""instructor: a pydantic model filled by tools, by JSON and by a JSON schema, streamed too. Prints it as JSON."""

import json
import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, Field


class Order(BaseModel):
    """What was ordered."""

    dish: Literal["soup", "rice", "cake"]
    guests: int = Field(ge=1, le=12)
    table: Literal["inside", "outside"] | None


said: dict[str, object] = {}
asked = [{"role": "user", "content": "We are 4 guests and would like the soup."}]
plain = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(plain, mode=mode)
    fields = {"model": "demo", "messages": asked, "temperature": 0, "max_tokens": 300}
    said[mode.name] = client.create(response_model=Order, max_retries=0, **fields).model_dump()
    *_, last = client.create_partial(response_model=Order, max_retries=0, **fields)
    said[f"{mode.name} in parts"] = last.model_dump()


class Anything(BaseModel):
    """JSON mode promises an object of no form; every field may be missing."""

    dish: object = None


client = instructor.from_openai(plain, mode=instructor.Mode.JSON)
fields = {"model": "demo", "messages": asked, "temperature": 0, "max_tokens": 300}
said["JSON"] = client.create(response_model=Anything, max_retries=0, **fields).model_dump()
print(json.dumps(said))
