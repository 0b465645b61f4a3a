"""``spectra serve --simulate``: recorded answers over HTTP, also after SIGKILL of a stage."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server_process import FLAGS, SpectraServer, StreamedCompletion, running

pytestmark = pytest.mark.matrix

QUESTION, ANSWER = "Does snow fall?", "Snow falls on the quiet town while the river keeps running."
PROFILE = {"base_s": 0.01, "stages": 2, "flat_sequences": 2}


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[SpectraServer]:
    with tempfile.TemporaryDirectory(prefix="si-") as folder:
        profile, logs = Path(folder) / "mine.json", Path(folder) / "logs.jsonl"
        profile.write_text(json.dumps(PROFILE))
        logs.write_text(json.dumps({"prompt": QUESTION, "answer": ANSWER}) + "\n")
        flags = (*FLAGS, "--simulate", str(profile), "--simulate-answers", str(logs))
        with running(tiny_checkpoint, flags) as started:
            yield started


def test_a_recorded_question_gets_its_recorded_answer_by_every_offered_method(server: SpectraServer) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 200}
    [model] = server.http.get("/v1/models").json()["data"]
    offered = model["speculative"]["methods"]
    assert {"autoregressive", "pld", "suffix", "auto"} <= set(offered)
    for method in offered:
        [choice] = server.http.post("/v1/chat/completions", json=body | {"speculative": {"method": method}}).json()[
            "choices"
        ]
        assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER, "stop"), method
    answer = server.complete(max_tokens=5, speculative={"method": "spectra-core"})
    assert answer.status_code == 400
    assert "a simulated target has no states to read" in answer.json()["error"]["message"]


def test_a_stream_continues_with_identical_output_after_sigkill_of_a_stage(server: SpectraServer) -> None:
    expected = server.token_ids(max_tokens=120, temperature=0)
    stream = StreamedCompletion(server, max_tokens=120, temperature=0, speculative={"method": "autoregressive"})
    stream.until(10)
    server.process_of("StageActor").kill()
    assert stream.all_ids() == expected
    server.settled()
