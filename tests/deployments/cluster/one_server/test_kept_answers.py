"""Kept answers of a real server with a Redis, while clients leave and processes are killed: no text changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.deployments.cluster.one_server.test_faults import (
    INGRESS,
    METHODS,
    N_TOKENS,
    ROUTER,
    STAGE,
    alive,
    job,
    wait_until_gone,
)
from tests.support.server_process import SpectraServer, StreamedCompletion
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

KEEPER = "ray::ServeReplica:spectra:AnswerKeeper"
STREAMS, BACKGROUND = range(4), range(4, 6)  # jobs of each kind
QUESTION = "hello"


class ResumedCompletion(StreamedCompletion):
    """A resumable stream; its client connects again whenever the connection ends early, or ``drop`` closes it."""

    def __init__(self, server: SpectraServer, **fields: Any) -> None:
        self.dropped = 0
        self._response: httpx.Response | None = None
        super().__init__(server, stream_options={"resumable": True}, **fields)

    def _read(self) -> None:
        position, name = "", ""
        while self.ended_with != "data: [DONE]":
            try:
                if name:
                    headers = {"Last-Event-ID": position}
                    sent = self._server.http.stream("GET", f"/v1/streams/{name}", headers=headers)
                else:
                    sent = self._server.http.stream("POST", "/v1/completions", json=self._fields)
                with sent as self._response:
                    for line in self._response.iter_lines():
                        self.ended_with = line or self.ended_with
                        if line.startswith("id: "):
                            position = line[4:]
                        elif line.startswith("data: {"):
                            chunk = json.loads(line[6:])
                            name = chunk["id"]
                            self.token_ids += chunk["choices"][0]["token_ids"]
            except (httpx.HTTPError, httpx.StreamError):
                self.dropped += 1

    def drop(self) -> None:
        """Lose the connection, as a phone does."""
        assert self._response is not None
        self._response.extensions["network_stream"].get_extra_info("socket").shutdown(2)


def ask_in_background(server: SpectraServer, number: int) -> openai.types.responses.Response:
    fields = job(number) | {"max_output_tokens": N_TOKENS}
    extra = {name: fields.pop(name) for name in ("seed", "ignore_eos", "speculative")}
    temperature = fields["temperature"]
    return server.openai.responses.create(
        model="tiny",
        input=QUESTION,
        temperature=temperature,
        max_output_tokens=N_TOKENS,
        background=True,
        extra_body=extra,
    )


def text_of(server: SpectraServer, name: str) -> str:
    """The text of a response that has ended; calls that a lost process answers are repeated."""

    def ended() -> str | None:
        try:
            found = server.openai.responses.retrieve(name)
        except (openai.APIConnectionError, openai.InternalServerError):
            return None
        assert found.status in ("queued", "in_progress", "incomplete"), found
        return found.output_text if found.status == "incomplete" else None

    return wait_until(ended, lambda: f"{name} does not end") or ""


@pytest.fixture(scope="module")
def texts(server: SpectraServer) -> tuple[list[list[int]], list[str]]:
    """The undisturbed answers: token ids of the streams, texts of the responses in the background."""
    with ThreadPoolExecutor(len(METHODS)) as pool:
        ids = pool.map(lambda n: server.token_ids(**job(n) | {"speculative": {"enabled": False}}), STREAMS)
        return [*ids], [text_of(server, ask_in_background(server, number).id) for number in BACKGROUND]


def lose_connections(server: SpectraServer, streams: list[ResumedCompletion]) -> list[psutil.Process]:
    for stream in streams:
        stream.drop()
    return []


def kill(title: str) -> Callable[[SpectraServer, list[ResumedCompletion]], list[psutil.Process]]:
    def kill_all(server: SpectraServer, _: list[ResumedCompletion]) -> list[psutil.Process]:
        victims = alive(server, title)
        for victim in victims:
            victim.kill()
        return victims

    return kill_all


@pytest.mark.parametrize(
    "fault",
    [lose_connections, kill(INGRESS), kill(ROUTER), kill(KEEPER), kill(STAGE)],
    ids=["connections", "ingresses", "router", "keeper", "stages"],
)
def test_no_kept_answer_is_lost_or_changed(
    server: SpectraServer,
    texts: tuple[list[list[int]], list[str]],
    fault: Callable[[SpectraServer, list[ResumedCompletion]], list[psutil.Process]],
) -> None:
    names = [ask_in_background(server, number).id for number in BACKGROUND]
    streams = [ResumedCompletion(server, **job(number)) for number in STREAMS]
    for stream in streams:
        stream.until(30)
    victims = fault(server, streams)
    assert [stream.all_ids() for stream in streams] == texts[0]
    assert [text_of(server, name) for name in names] == texts[1]
    if fault is lose_connections:
        assert all(stream.dropped for stream in streams)
    wait_until_gone(victims)
    server.settled()


def test_openais_client_streams_resumes_cancels_and_deletes_a_background_response(server: SpectraServer) -> None:
    responses = server.openai.responses
    fields: Any = {"model": "tiny", "input": QUESTION, "background": True, "temperature": 0}
    more = {"extra_body": {"ignore_eos": True}}
    events = [*responses.create(**fields, **more, stream=True, max_output_tokens=40)]
    name, half = events[0].response.id, len(events) // 2
    rest = [*responses.retrieve(name, stream=True, starting_after=half)]
    assert [one.model_dump(exclude={"response"}) for one in rest] == [
        one.model_dump(exclude={"response"}) for one in events[half + 1 :]
    ]
    whole = responses.retrieve(name)
    assert whole.output_text == "".join(one.delta for one in events if one.type == "response.output_text.delta")
    responses.delete(name)
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(name)
    running = responses.create(**fields, **more, max_output_tokens=N_TOKENS)
    assert responses.cancel(running.id).status == "cancelled"
    server.settled()
