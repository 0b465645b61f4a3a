"""``spectra bench --replay``: recorded answers through the real command, with the packaged tokenizer and no model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.bench.replay import ReplayTarget
from app.cli import main
from app.demo.paths import DEMO_TARGET
from app.inputs.recordings import encode, read_logs, split
from app.inputs.tokenizers import load_tokenizer
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.tree import TokenTree
from engine.verify.batch import WalkItem, verify
from engine.verify.rules import walk_text
from retrieval_store.snapshots.corpus import Document, Message
from speculators.pool import SpeculatorPool
from speculators.testing import AlwaysRight, AlwaysWrong
from tests.support.cli_run import CliRun, run_cli

LIST = "The river runs from the hills to the sea. The river runs past the town, and the river runs on."
POEM = "Snow falls on the quiet town. Snow falls on the hills. Snow falls, and the quiet town sleeps."
VOCAB = 6


def talk(question: str, answer: str, **more: str) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        **more,
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def to_file(*lines: object, name: str = "logs.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
        return path

    return to_file


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str]) -> Callable[..., CliRun]:
    """``replay(logs, "--methods", "pld", ..)``: runs the command here."""

    def run(logs: Path, *more: object) -> CliRun:
        return run_cli(capsys, "bench", "--replay", logs, "--tokenizer", "demo", *more)

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
def test_following_the_record_is_verification_of_one_hot_predictions(tree: TokenTree, future: list[int]) -> None:
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
        jobs = [
            Request(list(prompt), SamplingParams(max_tokens=len(answer)), make.name) for prompt, answer in texts.items()
        ]
        live = {engine.submit(job): answer for job, answer in zip(jobs, texts.values(), strict=True)}
        for seq, answer in live.items():
            target.record(seq, answer)
        written: dict[int, list[int]] = {seq: [] for seq in live}
        forwards = []
        while engine.has_work:
            for seq, event in engine.step():
                written[seq] += event.token_ids
                if event.stats is not None:
                    forwards.append(event.stats.target_forwards)
        assert written == live
        assert max(forwards) == n_forwards
        assert not target._live


def test_figures_are_those_of_the_recorded_answers(replay: Callable[..., CliRun], write: Callable[..., Path]) -> None:
    logs = write(talk("Write.", LIST, source="a"), talk("Sing.", POEM, source="b"))
    ran = replay(logs, "--methods", "pld,anpd", "--max-nodes", 16)
    assert ran.status == 0
    assert set(ran.methods) == {"autoregressive", "pld", "anpd"}
    tokenizer = load_tokenizer(DEMO_TARGET)
    end = tokenizer.eos_token_id
    n = sum(len(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids) for text in (LIST, POEM))
    for name, figures in ran.methods.items():
        assert figures["identical_to_autoregressive"] is True
        assert figures["tokens"] == n + 2 * (end is not None) - 2  # the prefill writes the first
        assert figures["tokens_per_forward"] == round(figures["tokens"] / figures["target_forwards"], 4)
        assert set(figures["by_category"]) == {"a", "b"}
        assert [figures[key] for key in ("speedup", "mic_tp", "mac_tp", "outside_target")] == [None] * 4, name
    assert ran.tau("autoregressive") == 1.0
    assert ran.tau("pld") > 1.2
    assert (ran.document["model"], ran.document["prompts"], ran.document["plots"]) == (None, 2, [])
    assert "| pld " in ran.out


def test_every_form_of_a_line_and_every_turn_is_replayed(
    replay: Callable[..., CliRun], write: Callable[..., Path]
) -> None:
    turns = talk("Write.", LIST)["messages"] + talk("Again.", LIST)["messages"]
    system = [{"role": "system", "content": "Be brief."}, *talk("Sing.", POEM)["messages"]]
    logs = write(
        {"messages": turns, "category": "chat"},
        {"prompt": "Sing.", "answer": POEM, "category": "song"},
        {"question": "Sing.", "answer": POEM, "category": "song"},
        {"messages": system, "category": "song"},
    )
    ran = replay(logs, "--methods", "pld")
    categories = ran.methods["pld"]["by_category"]
    assert {name: figures["outputs"] for name, figures in categories.items()} == {"chat": 2, "song": 3}
    assert categories["chat"]["tokens_per_forward"] > 2  # the second turn repeats the first


def test_a_line_may_have_a_prediction_of_its_answer(replay: Callable[..., CliRun], write: Callable[..., Path]) -> None:
    asked = {"prompt": "Sing.", "answer": POEM}
    with_one = replay(write({**asked, "prediction": POEM}), "--methods", "prediction")
    without = replay(write(asked), "--methods", "prediction")
    assert with_one.tau("prediction") > 10
    assert without.tau("prediction") == 1.0


def test_the_history_is_the_corpus_and_what_warm_methods_have_seen(
    replay: Callable[..., CliRun], write: Callable[..., Path]
) -> None:
    logs = write(talk("One.", LIST), talk("Two.", LIST), talk("Three.", POEM), talk("Four.", POEM))
    halves = replay(logs, "--methods", "pld,rest,pld+rest", "--split", "0.5", "--state", "cold,warm")
    assert (halves.document["prompts"], halves.document["history"]) == (2, 2)
    assert halves.tau("rest") > 5  # the very answers are in the corpus
    assert halves.tau("pld+rest") >= halves.tau("pld")
    assert [run["state"] for run in halves.document["runs"]] == ["cold", "warm"]
    assert "rest" in halves.methods["pld+rest"]["by_source"]

    other = write(talk("Five.", "Nothing of the kind."), name="other.jsonl")
    unrelated = replay(logs, "--methods", "rest", "--history", other)
    assert unrelated.tau("rest") < halves.tau("rest")
    named = replay(logs, "--methods", "rest", "--history", other, "--retrieval", logs)
    assert named.tau("rest") > 5


def test_a_stopped_replay_goes_on_and_other_settings_are_refused(
    replay: Callable[..., CliRun], write: Callable[..., Path], tmp_path: Path
) -> None:
    logs, out = write(talk("One.", LIST), talk("Two.", POEM)), tmp_path / "out"
    whole = replay(logs, "--methods", "pld", "--out", out)
    assert {path.name for path in out.iterdir()} == {
        "records.jsonl",
        "tables.md",
        "bench.json",
        "tau.png",
        "sources.png",
    }
    records = (out / "records.jsonl").read_text().splitlines(keepends=True)
    (out / "records.jsonl").write_text("".join(records[:3]))
    again = replay(logs, "--methods", "pld", "--out", out)
    assert again.methods == whole.methods
    assert (out / "records.jsonl").read_text().splitlines(keepends=True)[:3] == records[:3]
    both = replay(logs, "--methods", "pld,anpd", "--out", out)
    assert both.methods["pld"] == whole.methods["pld"]
    assert set(both.methods) == {"autoregressive", "pld", "anpd"}
    assert set(replay(logs, "--methods", "anpd", "--out", out).methods) == {"autoregressive", "anpd"}
    refused = replay(logs, "--methods", "pld", "--out", out, "--max-nodes", 3)
    assert refused.status == 2
    assert "max_nodes: 64 there, 3 now" in refused.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--methods", "spectra-core"],
            "'spectra-core' cannot be replayed from text alone: it reads the target's best",
        ),
        (["--methods", "pld+lookahead"], "'lookahead' cannot be replayed"),
        (["--methods", "pld-plus-h"], "hidden states"),
        (["--methods", "pld-plus-a"], "attention"),
        (["--methods", "draft-model"], "'draft-model' cannot be replayed from text alone: it drafts with"),
        (["--methods", "auto"], "'auto' cannot be replayed"),
        (["--methods", "eagle"], "needs a drafter that was trained"),
        (["--methods", "magic"], "unknown method"),
        (["--methods", "rest"], "give --retrieval DIR"),
        (["--methods", "rest", "--retrieval", "nowhere"], "--retrieval nowhere: no such"),
        (["--methods", "rest", "--retrieval", "redis://host"], "redis"),
        (["--methods", "pld", "--temperature", "0.8"], "--temperature means nothing"),
        (["--methods", "pld", "--dtype", "bfloat16"], "--dtype means nothing"),
        (["--methods", "pld", "--max-new-tokens", "9"], "--max-new-tokens means nothing"),
        (["--methods", "pld", "--draft-model", "demo"], "--draft-model means nothing"),
        (["--methods", "pld", "--repeats", "2"], "--repeats means nothing"),
        (["--methods", "pld", "--split", "1.5"], "--split is 1.5"),
        (["--methods", "pld", "--split", "0.01"], "too few"),
        (["--methods", "pld", "--split", "0.5", "--history", "LOGS"], "--split and --history"),
        (["--methods", "pld", "--source", "model-z"], "sources in the files: model-a"),
        (["--methods", "pld", "--limit", "0"], "--limit is 0"),
        (["--methods", "pld", "--warm-passes", "-1"], "--warm-passes is -1"),
        (["--methods", "pld", "--tokenizer", "nowhere"], "--tokenizer nowhere"),
        (["--methods", "pld", "--history", "gone.jsonl"], "--history gone.jsonl"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(
    replay: Callable[..., CliRun], write: Callable[..., Path], flags: list[str], message: str
) -> None:
    logs = write(talk("One.", LIST, source="model-a"), talk("Two.", POEM, source="model-a"))
    refused = replay(logs, *(str(logs) if flag == "LOGS" else flag for flag in flags))
    assert (refused.status, refused.out) == (2, "")
    assert message in refused.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text": "no answer"}, "line 2: there is no answer in it"),
        ({"messages": [{"role": "assistant", "content": "hello"}]}, "line 2: there is no answer"),
        ({"question": "why?"}, "line 2 is none of"),
    ],
)
def test_a_line_without_an_answer_is_named(
    replay: Callable[..., CliRun], write: Callable[..., Path], line: object, message: str
) -> None:
    refused = replay(write(talk("One.", LIST), line), "--methods", "pld")
    assert refused.status == 2
    assert message in refused.err


def test_a_stopped_warm_replay_begins_again_with_its_history(
    replay: Callable[..., CliRun], write: Callable[..., Path], tmp_path: Path
) -> None:
    logs, out = write(talk("One.", LIST), talk("Two.", POEM), talk("Three.", POEM)), tmp_path / "out"
    flags = ("--methods", "pld,rest", "--split", "0.4", "--warm", "--warm-passes", 2, "--out", out)
    whole = replay(logs, *flags)
    assert [run["state"] for run in whole.document["runs"]] == ["warm"]
    records = (out / "records.jsonl").read_text().splitlines(keepends=True)
    (out / "records.jsonl").write_text("".join(records[:4]))
    assert replay(logs, *flags).methods == whole.methods
    lines = map(json.loads, (out / "records.jsonl").read_text().splitlines())
    methods = Counter(line["method"] for line in lines if "method" in line)
    assert methods == {"autoregressive": 2, "pld": 1 + 2, "rest": 2}  # a method that was cut is replayed whole


def test_a_tokenizer_is_needed(write: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--replay", str(write(talk("One.", LIST))), "--methods", "pld"]) == 2
    assert "--tokenizer DIR" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--tokenizer", "--source", "--split", "--history"])
def test_flags_of_replays_are_refused_without_one(
    flag: str, write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "--prompts", str(write({"turns": ["hi"]})), "--methods", "pld", "--out", str(tmp_path / "out")]
    assert main([*command, flag, "0.5"]) == 2
    assert f"{flag} goes with --replay" in capsys.readouterr().err


def test_only_a_replay_goes_without_a_folder(write: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--prompts", str(write({"turns": ["hi"]})), "--methods", "pld"]) == 2
    assert "--out DIR" in capsys.readouterr().err


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.floats(0.05, 0.95))
def test_a_split_keeps_the_answers_to_one_prompt_together(prompts: list[int], fraction: float) -> None:
    documents = [Document(origin=str(i), messages=[Message("user", str(p))]) for i, p in enumerate(prompts)]
    history, test = split(documents, fraction)
    sides = [{d.messages[0].content for d in side} for side in (history, test)]
    assert not sides[0] & sides[1]
    assert sorted(d.origin for d in (*history, *test)) == sorted(d.origin for d in documents)
    assert abs(len(sides[0]) - fraction * len(set(prompts))) <= 1


def test_prompts_and_answers_are_what_the_model_read_and_wrote(write: Callable[..., Path]) -> None:
    tokenizer = load_tokenizer(DEMO_TARGET)
    logs = write({"messages": talk("Write.", LIST)["messages"] + talk("Sing.", POEM)["messages"]})
    first, second = encode(tokenizer, read_logs([logs], None, "--replay"), "--replay")
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    shown = tokenizer.decode(second.prompt + second.answer, clean_up_tokenization_spaces=False)
    assert first.answer[len(first.answer) - len(end) :] == end
    assert tokenizer.decode(first.answer[: len(first.answer) - len(end)]) == LIST
    assert all(text in shown for text in ("Write.", LIST, "Sing.", POEM))
    assert (first.turn, second.turn, first.index, second.index) == (0, 1, 0, 0)


def test_generate_with_a_corpus_writes_the_plain_text_in_fewer_forwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def generate(*flags: object) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["generate", "--prompt", "Write about the sea.", "--json", *map(str, flags)]) == 0
        return dict(json.loads(capsys.readouterr().out))

    plain = generate("--method", "autoregressive", "--max-new-tokens", 40)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text(plain["text"])
    found = generate("--method", "rest", "--max-new-tokens", 40, "--retrieval", tmp_path / "corpus")
    assert found["token_ids"] == plain["token_ids"]
    assert found["target_forwards"] < 0.5 * plain["target_forwards"]
    assert set(found["by_source"]) == {"rest"}
    assert main(["generate", "--prompt", "x", "--method", "rest"]) == 2
    assert "--retrieval DIR" in capsys.readouterr().err
