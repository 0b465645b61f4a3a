"""Load generators: every request succeeds, and they count the server's tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.inputs.default_model import DEFAULT_MODEL, PACKAGE
from tests.newcomer.clients.conftest import run
from tests.support.server_process import SpectraServer
from tests.support.tiny_models import tiny_default_model

pytestmark = pytest.mark.matrix

QUESTIONS = ("What is 12 plus 7?", "Who are you?", "Sort 9, 3 and 5.", "Write a poem about the sea.")
TOKENIZER = tiny_default_model() / PACKAGE / DEFAULT_MODEL
N, AT_ONCE, MOST = 12, 3, 24  # requests, clients, tokens


@pytest.fixture(scope="module")
def total_tokens(server: SpectraServer) -> int:
    """Output tokens of all requests by the server's count."""
    counts = []
    for question in QUESTIONS:
        fields = {"temperature": 0, "max_tokens": MOST, "messages": [{"role": "user", "content": question}]}
        answer = server.http.post("/v1/chat/completions", json={"model": DEFAULT_MODEL} | fields)
        counts.append(answer.json()["usage"]["completion_tokens"])
    return sum(counts) * N // len(QUESTIONS)


def questions(folder: Path, field: str) -> Path:
    """Write a file with one request a line; return its path."""
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps({field: QUESTIONS[i % len(QUESTIONS)]}) + "\n" for i in range(N)))
    return path


def test_guidellm_counts_every_token(server: SpectraServer, tmp_path: Path, total_tokens: int) -> None:
    sends = f"kind=openai_http,target={server.base},model={DEFAULT_MODEL},request_format=/v1/chat/completions"
    extras = f",extras.body.temperature=0,extras.body.max_tokens={MOST}"
    run(
        "guidellm", "guidellm", "run", "--backend", sends + extras, "--tokenizer",
        f"kind=huggingface_auto,model={TOKENIZER}",
        "--profile", f"kind=concurrent,streams={AT_ONCE}", "--constraint", f"kind=max_requests,count={N}",
        "--data", f"kind=json_file,path={questions(tmp_path, 'prompt')}",
        "--output", f"kind=json,path={tmp_path}/results.json", "--disable-console",
    )  # fmt: skip
    [benchmark] = json.loads((tmp_path / "results.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (N, 0, 0)
    assert benchmark["metrics"]["output_token_count"]["successful"]["total_sum"] == total_tokens


def test_aiperf_counts_every_token_and_reads_speculation(
    server: SpectraServer, tmp_path: Path, total_tokens: int
) -> None:
    fields = {"temperature": 0, "max_tokens": MOST, "speculative": {"method": "pld+suffix"}}
    run(
        "aiperf", "aiperf", "profile", "-m", DEFAULT_MODEL, "--url", server.base, "--endpoint-type", "chat",
        "--streaming", "--tokenizer", TOKENIZER, "--input-file", questions(tmp_path, "text"),
        "--custom-dataset-type", "single_turn", "--concurrency", AT_ONCE, "--request-count", N,
        "--extra-inputs", json.dumps(fields),
        "--use-server-token-count", "--output-artifact-dir", tmp_path / "results", "--ui", "none",
    )  # fmt: skip
    results = json.loads((tmp_path / "results" / "profile_export_aiperf.json").read_text())
    assert results["request_count"]["avg"] == N
    assert not results.get("error_summary")
    assert results["total_output_tokens"]["avg"] == total_tokens
    lines = (tmp_path / "results" / "profile_export.jsonl").read_text().splitlines()
    steps = [json.loads(line)["metrics"]["spec_decode_steps"]["value"] for line in lines]
    assert all(step >= 1 for step in steps)
