"""The one server of ``make test``: exact against Hugging Face, with speculation, and across the loss of its stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.server_process import SpectraServer, StreamedCompletion, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

PROMPT = "Snow falls on the quiet town and"
SEEDED: dict[str, Any] = {"max_tokens": 500, "temperature": 0.8, "seed": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[SpectraServer]:
    with running(tiny_checkpoint) as started:
        yield started


def test_a_greedy_answer_is_the_one_of_hugging_face(server: SpectraServer) -> None:
    ids = AutoTokenizer.from_pretrained(server.checkpoint)(PROMPT, return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(server.checkpoint, dtype=torch.float32)
    generated = model.generate(**ids, max_new_tokens=60, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert server.token_ids(prompt=PROMPT, max_tokens=60, temperature=0) == generated.tolist()


def test_speculation_changes_no_seeded_answer_and_saves_steps(server: SpectraServer) -> None:
    fields = SEEDED | {"max_tokens": 100, "logit_bias": {"9": 8}}  # enough repetition to draft from
    plain = server.complete(**fields, speculative={"enabled": False}).json()
    drafted = server.complete(**fields, speculative={"method": "pld", "max_nodes": 4}).json()
    assert drafted["choices"] == plain["choices"]
    steps = [answer["metrics"]["speculative_decoding"]["num_spec_steps"] for answer in (plain, drafted)]
    assert steps[1] < steps[0] == 99


def test_a_stream_continues_with_identical_output_after_sigkill_of_the_stage(server: SpectraServer) -> None:
    expected = server.token_ids(**SEEDED)
    stream = StreamedCompletion(server, **SEEDED, speculative={"method": "pld"})
    stream.until(50)
    stage = server.process_of("StageActor")
    stage.kill()
    assert stream.all_ids() == expected
    wait_until(lambda: server.health()["pipelines_lost"] >= 1, "the lost stage was not noticed")
    server.settled()
    assert server.process_of("StageActor").pid != stage.pid
