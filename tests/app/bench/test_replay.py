"""``spectra bench --replay``: recorded answers with a tokenizer and without a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.bench.replay import ReplayTarget
from app.inputs.tokenizers import load_tokenizer
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.tree import TokenTree
from engine.verify.batch import WalkItem, verify
from engine.verify.rules import walk_text
from speculators.pool import SpeculatorPool
from speculators.testing import AlwaysRight, AlwaysWrong
from tests.support.spectra_command import CliRun, run_cli

LIST = "The river runs from the hills to the sea. The river runs past the town, and the river runs on."
POEM = "Snow falls on the quiet town. Snow falls on the hills. Snow falls, and the quiet town sleeps."
VOCAB = 6


def talk(question: str, answer: str, **more: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **more}


Write = Callable[..., Path]
Replay = Callable[..., CliRun]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(*lines: object, name: str = "logs.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
        return path

    return to_file


@pytest.fixture
def replay(tiny_checkpoint: Path) -> Replay:
    """``replay(logs, "pld", ..)``: runs the command in this process."""

    def run(logs: Path, methods: str, *more: object, status: int = 0) -> CliRun:
        ran = run_cli("bench", "--replay", logs, "--tokenizer", tiny_checkpoint, "--methods", methods, *more)
        assert ran.status == status, ran.err
        return ran

    return run


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    n = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    probe: list[bool] = []
    for parent in parents:
        probe.append((parent >= 0 and probe[parent]) or draw(st.integers(0, 4)) == 0)
    return TokenTree([draw(st.integers(0, VOCAB - 1)) for _ in range(n)], parents, probe=probe)


@given(trees(), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
def test_walking_along_a_record_equals_verification(tree: TokenTree, future: list[int]) -> None:
    on_path = {-1}
    for node, parent in enumerate(tree.parents):
        depth = tree.depths[node] - 1
        if parent in on_path and depth < len(future) and tree.tokens[node] == future[depth]:
            on_path.add(node)
    logits = torch.zeros(len(tree) + 1, VOCAB + 1)
    for node in range(-1, len(tree)):
        depth = 0 if node == -1 else tree.depths[node]
        logits[node + 1, future[depth] if node in on_path and depth < len(future) else VOCAB] = 1.0
    (walk,) = verify(logits, [WalkItem(tree, 0, SamplingParams(), None, 9, len(future))])
    assert walk_text(tree, future) == (walk.tokens, walk.accepted)


@pytest.mark.parametrize("chunk", [3, 512])
def test_the_engine_writes_the_record_whatever_is_drafted(chunk: int) -> None:
    texts = {(1, 2, 3, 4, 5, 6, 7): list(range(8, 40)), (9, 8): [5, 5, 5, 5], (4,): [3]}
    for make, n_forwards in ((AlwaysRight, 8), (AlwaysWrong, 31)):
        pool = SpeculatorPool(extra={make.name: lambda _, make=make: make(texts, 3)})  # type: ignore[misc]
        target = ReplayTarget(64, 39)
        engine = Engine(target, pool, SchedulerOptions(prefill_chunk=chunk))
        target.answers.extend(texts.values())
        requests = [
            Request(list(prompt), SamplingParams(max_tokens=len(answer)), make.name) for prompt, answer in texts.items()
        ]
        completions = dict(engine.run(requests, len(requests)))
        assert [completions[i].token_ids for i in range(len(requests))] == list(texts.values())
        assert max(one.stats.target_forwards for one in completions.values()) == n_forwards


def test_figures_are_those_of_the_recorded_answers(replay: Replay, write: Write, tiny_checkpoint: Path) -> None:
    run = replay(write(talk("Write.", LIST, source="a"), talk("Sing.", POEM, source="b")), "pld,anpd")
    tokenizer = load_tokenizer(tiny_checkpoint)
    assert tokenizer.eos_token_id is not None
    n = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in (LIST, POEM))
    assert set(run.methods) == {"autoregressive", "pld", "anpd"}
    for name, figures in run.methods.items():
        assert figures["identical_to_autoregressive"] is True
        assert figures["tokens"] == n  # with two EOS, without the two first tokens, which prefills write
        assert figures["tokens_per_forward"] == round(figures["tokens"] / figures["target_forwards"], 4)
        assert set(figures["by_category"]) == {"a", "b"}
        assert [figures[key] for key in ("speedup", "mic_tp", "mac_tp", "outside_target")] == [None] * 4, name
    assert run.tau("autoregressive") == 1.0
    assert run.tau("pld") > 1.2
    assert (run.document["model"], run.document["prompts"], run.document["plots"]) == (None, 2, [])
    assert "| pld " in run.out


def test_every_form_of_a_line_and_every_turn_is_replayed(replay: Replay, write: Write) -> None:
    system = [{"role": "system", "content": "Be brief."}, *talk("Sing.", POEM)["messages"]]
    run = replay(
        write(
            {"messages": talk("Write.", LIST)["messages"] + talk("Again.", LIST)["messages"], "category": "chat"},
            {"prompt": "Sing.", "answer": POEM, "category": "song", "prediction": POEM},
            {"question": "Sing.", "answer": POEM, "category": "poem"},
            {"messages": system, "category": "poem"},
        ),
        "pld,prediction",
    )
    pld, prediction = (run.methods[name]["by_category"] for name in ("pld", "prediction"))
    assert {name: figures["outputs"] for name, figures in pld.items()} == {"chat": 2, "song": 1, "poem": 2}
    assert pld["chat"]["tokens_per_forward"] > 2  # the second turn repeats the first
    assert prediction["song"]["tokens_per_forward"] > 10
    assert prediction["poem"]["tokens_per_forward"] == 1.0


def test_the_history_is_the_corpus_and_the_state_of_warm_methods(replay: Replay, write: Write) -> None:
    logs = write(talk("One.", LIST), talk("Two.", LIST), talk("Three.", POEM), talk("Four.", POEM))
    halves = replay(logs, "pld,rest,pld+rest", "--split", "0.5", "--state", "cold,warm")
    assert (halves.document["prompts"], halves.document["history"]) == (2, 2)
    assert halves.tau("rest") > 5  # the very answers are in the corpus
    assert halves.tau("pld+rest") >= halves.tau("pld")
    assert [run["state"] for run in halves.document["runs"]] == ["cold", "warm"]
    assert "rest" in halves.methods["pld+rest"]["by_source"]
    other = write(talk("Five.", "Nothing of the kind."), name="other.jsonl")
    assert replay(logs, "rest", "--history", other).tau("rest") < halves.tau("rest")
    assert replay(logs, "rest", "--history", other, "--retrieval", logs).tau("rest") > 5


def test_a_stopped_replay_is_resumed(replay: Replay, write: Write, tmp_path: Path) -> None:
    logs, out = write(talk("One.", LIST), talk("Two.", POEM)), tmp_path / "out"
    whole = replay(logs, "pld", "--out", out)
    files = {"records.jsonl", "tables.md", "bench.json", "tau.png", "sources.png"}
    assert {path.name for path in out.iterdir()} == files
    records = (out / "records.jsonl").read_text().splitlines(keepends=True)
    (out / "records.jsonl").write_text("".join(records[:3]))
    assert replay(logs, "pld", "--out", out).methods == whole.methods
    assert (out / "records.jsonl").read_text().splitlines(keepends=True)[:3] == records[:3]
    both = replay(logs, "pld,anpd", "--out", out)
    assert both.methods["pld"] == whole.methods["pld"]
    assert set(both.methods) == {"autoregressive", "pld", "anpd"}
    refused = replay(logs, "pld", "--out", out, "--max-nodes", 3, status=2)
    assert "max_nodes: 64 there, 3 now" in refused.err


@pytest.mark.parametrize(
    ("methods", "flags", "message"),
    [
        ("spectra-core", [], "cannot be replayed from text alone: it reads outputs of the target"),
        ("pld-plus-h", [], "hidden states"),
        ("draft-model", [], "'draft-model' cannot be replayed from text alone: it drafts with"),
        ("eagle", [], "needs a drafter that was trained"),
        ("rest", [], "give --retrieval DIR"),
        ("rest", ["--retrieval", "nowhere"], "--retrieval nowhere: no such"),
        ("pld", ["--temperature", "0.8"], "--temperature has no effect on a replay"),
        ("pld", ["--split", "1.5"], "--split is 1.5"),
        ("pld", ["--split", "0.5", "--history", "LOGS"], "--split and --history"),
        ("pld", ["--source", "model-z"], "sources in the files: model-a"),
        ("pld", ["--warm-passes", "-1"], "--warm-passes is -1"),
        ("pld", ["--tokenizer", "nowhere"], "--tokenizer nowhere"),
        ("pld", ["--history", "gone.jsonl"], "--history gone.jsonl"),
    ],
)
def test_an_impossible_replay_is_refused(
    replay: Replay, write: Write, methods: str, flags: list[str], message: str
) -> None:
    logs = write(talk("One.", LIST, source="model-a"), talk("Two.", POEM, source="model-a"))
    refused = replay(logs, methods, *(str(logs) if flag == "LOGS" else flag for flag in flags), status=2)
    assert refused.out == ""
    assert message in refused.err.splitlines()[-1]


@pytest.mark.parametrize("line", [{"text": "no answer"}, {"messages": [{"role": "assistant", "content": "hello"}]}])
def test_a_line_without_an_answer_is_named(replay: Replay, write: Write, line: object) -> None:
    assert "line 2 has no answer" in replay(write(talk("One.", LIST), line), "pld", status=2).err
