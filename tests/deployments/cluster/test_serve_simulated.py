"""``spectra serve --simulate``: known texts over HTTP, before and after a stage process was killed."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.inputs.tokenizers import load_tokenizer
from engine.sampling.params import SamplingParams
from engine.simulated.answers import Answers
from tests.support.server_process import (
    FLAGS,
    Server,
    Stream,
    check_a_signal_to_all_processes_stops_the_server,
    running,
)

pytestmark = pytest.mark.cluster

QUESTION, ANSWER = "Does snow fall?", "Snow falls on the quiet town while the river keeps running."
PROFILE = {"base_s": 0.01, "stages": 2, "flat_sequences": 2}


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="si-") as folder:
        profile, logs = Path(folder) / "mine.json", Path(folder) / "logs.jsonl"
        profile.write_text(json.dumps(PROFILE))
        logs.write_text(json.dumps({"prompt": QUESTION, "answer": ANSWER}) + "\n")
        flags = (*FLAGS, "--simulate", str(profile), "--simulate-answers", str(logs))
        with running(tiny_checkpoint, flags) as started:
            yield started


def _made_up(checkpoint: Path, prompt: str, n: int) -> list[int]:
    tokenizer = load_tokenizer(checkpoint)
    eos = int(tokenizer.eos_token_id)
    return Answers(320, (eos,)).to(tokenizer.encode(prompt), SamplingParams(stop_ids=(eos,))).part(0, n)


def test_a_recorded_question_gets_its_recorded_answer_and_the_text_ends_there(server: Server) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 200}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["message"]["content"] == ANSWER
    assert choice["finish_reason"] == "stop"


def test_what_reads_states_is_refused_with_what_works(server: Server) -> None:
    answer = server.complete(max_tokens=5, speculative={"method": "spectra-core"})
    assert answer.status_code == 400
    assert "a simulated target has no states to read" in answer.json()["error"]["message"]


def test_what_is_offered_works(server: Server) -> None:
    [model] = server.http.get("/v1/models").json()["data"]
    offered = model["speculative"]["methods"]
    assert {"autoregressive", "pld", "suffix", "auto"} <= set(offered)
    for method in offered:
        assert server.complete(max_tokens=5, speculative={"method": method}).status_code == 200, method


def test_a_stream_goes_on_with_the_same_text_when_a_stage_is_killed(server: Server, tiny_checkpoint: Path) -> None:
    wanted = _made_up(tiny_checkpoint, "Snow falls", 120)
    assert server.token_ids(max_tokens=120, temperature=0) == wanted
    stream = Stream(server, max_tokens=120, temperature=0, speculative={"method": "autoregressive"})
    stream.until(10)
    server.process_of("StageActor").kill()
    assert stream.all_ids() == wanted
    server.settled()


def test_a_signal_to_the_control_group_lets_the_running_stream_end_and_leaves_nothing(server: Server) -> None:
    check_a_signal_to_all_processes_stops_the_server(server, signal.SIGTERM)
