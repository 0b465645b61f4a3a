"""instructor: a pydantic model filled by tools, by JSON and by a JSON schema, streamed too, with what the same body is
answered whole. Prints it as JSON."""

import json
import sys
from typing import Literal

import httpx
import instructor
import openai
from pydantic import BaseModel, Field


class Order(BaseModel):
    """What was ordered."""

    dish: Literal["soup", "rice", "cake"]
    guests: int = Field(ge=1, le=12)
    table: Literal["inside", "outside"] | None


def whole(body: dict[str, object]) -> dict[str, object]:
    """What the server answers to the body of a stream that is not streamed."""
    of_streams = ("stream", "stream_options")
    body = {name: value for name, value in body.items() if name not in of_streams}
    answer = httpx.post(f"{sys.argv[1]}/chat/completions", json=body, timeout=240).json()
    message = answer["choices"][0]["message"]
    calls = message.get("tool_calls")
    found = json.loads(calls[0]["function"]["arguments"] if calls else message["content"])
    return {name: value for name, value in found.items() if value is not None}


said: dict[str, object] = {}
sent: list[dict[str, object]] = []
asked = [{"role": "user", "content": "We are 4 guests and would like the soup."}]
noting = httpx.Client(event_hooks={"request": [lambda request: sent.append(json.loads(request.content))]})
plain = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, http_client=noting)
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(plain, mode=mode)
    fields = {"model": "demo", "messages": asked, "temperature": 0, "max_tokens": 300}
    said[mode.name] = client.create(response_model=Order, max_retries=0, **fields).model_dump()
    *_, last = client.create_partial(response_model=Order, max_retries=0, **fields)
    said[f"{mode.name} in parts"] = [last.model_dump(exclude_none=True), whole(sent[-1])]


class Named(BaseModel):
    name: str | None = None  # JSON mode promises an object of no form, so it may be missing


client = instructor.from_openai(plain, mode=instructor.Mode.JSON)
# Of what the model knows: objects in answer to other questions go on beyond any max_tokens.
asked = [{"role": "user", "content": "Text: Mary, 73, comes from Paris.\nJSON with the keys name, age, city:"}]
fields = {"model": "demo", "messages": asked, "temperature": 0, "max_tokens": 300}
said["JSON"] = client.create(response_model=Named, max_retries=0, **fields).model_dump()
print(json.dumps(said))
