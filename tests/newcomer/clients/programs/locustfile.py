"""locust: users who ask, read streams and count what fails."""

import json

from locust import HttpUser, task

FIELDS = {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": "What is 12 plus 7?"}]}


class Reader(HttpUser):
    @task
    def whole(self) -> None:
        with self.client.post("/v1/chat/completions", json=FIELDS, catch_response=True) as answer:
            if not answer.json()["choices"][0]["message"]["content"]:
                answer.failure("no text")

    @task
    def streamed(self) -> None:
        with self.client.post(
            "/v1/chat/completions", json=FIELDS | {"stream": True}, stream=True, name="stream", catch_response=True
        ) as answer:
            lines = [line for line in answer.iter_lines() if line.startswith(b"data: ")]
            if lines[-1] != b"data: [DONE]" or "error" in json.loads(lines[-2][6:]):
                answer.failure("not a whole stream")
