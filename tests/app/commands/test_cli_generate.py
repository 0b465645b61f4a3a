"""``spectra generate``: what it prints is a contract, and its text is that of Hugging Face ``generate``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from app.cli import main
from engine.step_cost import StepCosts
from tests.app.commands.conftest import Lines

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
KEYS = [
    "index",
    "turn",
    "text",
    "token_ids",
    "finish_reason",
    "prompt_tokens",
    "target_forwards",
    "drafted_tokens",
    "accepted_tokens",
    "tokens_per_forward",
    "seconds",
    "step_tokens",
    "max_nodes_used",
    "by_source",
]
EOS = 2
PROMPTS = ["The quick brown fox", "Snow falls on the quiet town", "Speculation drafts tokens"]


@pytest.fixture
def refused(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line the command says when it refuses."""

    def run(*flags: object) -> str:
        capsys.readouterr()
        assert main(["generate", "--model", str(tiny_checkpoint), *map(str, flags)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        [line] = said.err.splitlines()
        assert line.startswith("spectra: ")
        return line

    return run


@pytest.fixture
def questions(tmp_path: Path) -> Callable[[list[list[str]]], Path]:
    """Writes a prompt file in Spec-Bench's form."""

    def write(turns: list[list[str]]) -> Path:
        path = tmp_path / "questions.jsonl"
        lines = [{"question_id": i, "category": "test", "turns": t, "extra": 1} for i, t in enumerate(turns)]
        path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> Callable[[str, int], list[int]]:
    """What Hugging Face writes greedily behind a raw prompt, EOS included."""
    model = LlamaForCausalLM.from_pretrained(tiny_checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)

    @lru_cache
    def generate(prompt: str, n: int) -> list[int]:
        encoded = torch.tensor([tokenizer.backend_tokenizer.encode(prompt).ids])
        mask = torch.ones_like(encoded)
        ids = model.generate(encoded, attention_mask=mask, max_new_tokens=n, do_sample=False)
        return list(ids[0, encoded.shape[1] :].tolist())

    return generate


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """The command sets the number of threads of the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", METHODS)
def test_greedy_raw_text_is_that_of_hugging_face(
    method: str, spectra: Callable[..., Lines], questions: Any, reference: Any
) -> None:
    path = questions([[prompt] for prompt in PROMPTS])
    for batch_size, stages in ((1, 1), (3, 2)):
        flags = ("--max-new-tokens", 60, "--method", method, "--batch-size", batch_size, "--stages", stages)
        lines = spectra("--prompts", path, "--raw", *flags)
        assert [line["token_ids"] for line in lines] == [reference(prompt, 60) for prompt in PROMPTS]


@pytest.mark.parametrize("method", METHODS)
def test_a_line_has_every_key_and_its_figures_agree(method: str, spectra: Callable[..., Lines]) -> None:
    flags = ("--max-new-tokens", 80, "--max-nodes", 16, "--temperature", 0.7, "--seed", 5)
    [line] = spectra("--prompt", "Snow falls, snow falls, snow", "--method", method, *flags)
    assert list(line) == KEYS
    assert (line["index"], line["turn"]) == (0, 0)
    assert len(line["token_ids"]) == 1 + sum(line["step_tokens"])
    assert line["target_forwards"] == len(line["step_tokens"])
    assert min(line["step_tokens"]) >= 1
    assert line["tokens_per_forward"] == round(sum(line["step_tokens"]) / line["target_forwards"], 4)
    assert line["drafted_tokens"] == sum(source["drafted"] for source in line["by_source"].values())
    assert line["accepted_tokens"] == sum(source["accepted"] for source in line["by_source"].values())
    assert set(line["by_source"]) == {name for name in method.split("+") if name != "autoregressive"}
    assert line["max_nodes_used"] <= 16
    assert line["finish_reason"] in ("stop", "length")
    assert line["seconds"] > 0


@pytest.mark.parametrize("method", ["auto", "prediction", "prediction+suffix"])
def test_a_predicted_text_is_written_in_fewer_forwards(
    method: str, spectra: Callable[..., Lines], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # auto weighs a step's time, which other work on the machine must not decide here: a second, whatever its rows
    costs = StepCosts({1: ((1, 300), (1.0, 1.0))})
    monkeypatch.setattr("app.speculation.step_costs.read_costs", lambda file: costs)
    flags = ("--prompt", PROMPTS[0], "--raw", "--max-new-tokens", 60)
    [plain] = spectra(*flags, "--method", "autoregressive")
    file = tmp_path / "predicted.txt"
    file.write_text(plain["text"])
    [line] = spectra(*flags, "--method", method, "--prediction", file)
    assert line["token_ids"] == plain["token_ids"]
    assert line["target_forwards"] < plain["target_forwards"] / 2
    assert line["by_source"]["prediction"]["proposed_accepted"] > 0


def test_every_line_of_a_file_may_have_a_prediction(spectra: Callable[..., Lines], tmp_path: Path) -> None:
    [plain] = spectra("--prompt", PROMPTS[1], "--max-new-tokens", 40, "--method", "autoregressive")
    asked = [{"prompt": PROMPTS[1], "prediction": plain["text"]}, {"prompt": PROMPTS[1]}]
    file = tmp_path / "asked.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in asked))
    lines = spectra("--prompts", file, "--max-new-tokens", 40, "--method", "prediction")
    assert [line["token_ids"] for line in lines] == [plain["token_ids"]] * 2
    assert lines[0]["target_forwards"] < lines[1]["target_forwards"] == plain["target_forwards"]
    assert lines[1]["by_source"] == {}


def test_a_prediction_that_cannot_be_used_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfd")
    asked = ("--prompt", "a", "--prediction")
    assert "prediction+pld" in refused(*asked, tmp_path / "text", "--method", "pld")
    assert "No such file" in refused(*asked, tmp_path / "none")
    assert "not UTF-8" in refused(*asked, tmp_path / "bytes")


def test_an_end_of_text_counts_as_a_token_and_is_no_text(
    spectra: Callable[..., Lines], questions: Any, tiny_checkpoint: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    path = questions([[f"question {i}"] for i in range(16)])
    flags = ("--prompts", path, "--max-new-tokens", 40, "--temperature", 2.0, "--batch-size", 16)
    lines = [line for seed in range(8) for line in spectra(*flags, "--seed", seed)]  # one seed is one noise for all
    ended = [line for line in lines if line["finish_reason"] == "stop"]
    assert ended
    for line in ended:
        assert line["token_ids"][-1] == EOS
        assert line["token_ids"].count(EOS) == 1
        assert line["text"] == tokenizer.decode(line["token_ids"][:-1], skip_special_tokens=True)
        assert len(line["token_ids"]) == 1 + sum(line["step_tokens"])


def test_turns_run_as_a_conversation_and_lines_come_in_order_whatever_the_batch(
    spectra: Callable[..., Lines], questions: Any, tiny_checkpoint: Path
) -> None:
    turns = [["one", "two", "three"], ["four"], ["five", "six"], ["seven"]]
    path = questions(turns)
    flags = ("--prompts", path, "--max-new-tokens", 12, "--method", "pld")
    alone, together = spectra(*flags), spectra(*flags, "--batch-size", 3)
    expected = [(i, turn) for i, question in enumerate(turns) for turn in range(len(question))]
    assert [(line["index"], line["turn"]) for line in together] == expected
    assert [line["token_ids"] for line in together] == [line["token_ids"] for line in alone]
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    chat: list[dict[str, str]] = []
    for line, question in zip(alone[:3], turns[0], strict=True):
        chat.append({"role": "user", "content": question})
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert line["prompt_tokens"] == len(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
        chat.append({"role": "assistant", "content": line["text"]})


def test_raw_takes_the_first_turn_and_the_tokenizers_own_special_tokens(
    spectra: Callable[..., Lines], questions: Any, tiny_checkpoint: Path
) -> None:
    path = questions([["one", "two"], ["three"]])
    lines = spectra("--prompts", path, "--raw", "--max-new-tokens", 5)
    assert [(line["index"], line["turn"]) for line in lines] == [(0, 0), (1, 0)]
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    assert lines[0]["prompt_tokens"] == len(tokenizer.backend_tokenizer.encode("one").ids)
    assert len(spectra("--prompts", path, "--raw", "--max-new-tokens", 5, "--limit", 1)) == 1


def test_more_prompts_than_a_servers_queue_holds_are_no_overload(spectra: Callable[..., Lines], questions: Any) -> None:
    path = questions([["hi"]] * 300)
    lines = spectra("--prompts", path, "--raw", "--max-new-tokens", 1, "--batch-size", 300)
    assert [line["index"] for line in lines] == list(range(300))
    assert {line["target_forwards"] for line in lines} == {0}


def test_only_a_newline_ends_a_line_of_a_prompt_file(spectra: Callable[..., Lines], questions: Any) -> None:
    lines = spectra("--prompts", questions([["a\u2028b\u0085c"], ["d"]]), "--max-new-tokens", 2)
    assert len(lines) == 2


def test_without_json_the_text_is_printed_with_its_figures(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    flags = ["--prompt", "hi", "--max-new-tokens", "8", "--method", "pld"]
    assert main(["generate", "--model", str(tiny_checkpoint), *flags]) == 0
    assert "[8 tokens in " in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--method", "magic"], "unknown method 'magic'"),
        (["--method", "medusa"], "method 'medusa' needs a drafter"),
        (["--method", "pld+pld"], "twice"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--dtype", "int8"], "dtype is 'int8'"),
        (["--stages", "9"], "--stages is 9; it must be 1 to 4"),
        (["--stages", "0"], "--stages is 0"),
        (["--threads", "0"], "--threads is 0"),
        (["--limit", "0"], "--limit is 0"),
        (["--batch-size", "0"], "--batch-size is 0"),
        (["--kv-gib", "-1"], "--kv-gib is -1"),
        (["--kv-gib", "0.00001"], "kv_bytes"),
        (["--device", "tpu"], "--device is tpu"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0"),
        (["--max-new-tokens", "100000"], "exceed the context of 4096"),
        (["--temperature", "nan"], "--temperature is nan"),
        (["--top-p", "0"], "--top-p is 0"),
        (["--top-k", "-1"], "--top-k is -1"),
        (["--max-nodes", "-1"], "--max-nodes is -1"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_one_clear_line(flags: list[str], says: str, refused: Callable[..., str]) -> None:
    assert says in refused("--prompt", "hi", *flags)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"turns": ["ok"]}\n{"turns": "no list"}', "line 2"),
        (b'{"turns": ["ok"]}\n\n{"turns": []}', "line 3 has none of turns"),
        (b"not json", "line 1"),
        (b'{"question_id": 1}', "turns"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
    ids=str,
)
def test_a_malformed_prompt_file_is_named_with_its_line(
    content: bytes, says: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    line = refused("--prompts", path)
    assert says in line
    assert str(path) in line


def test_a_missing_prompt_file_is_named(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "No such file" in refused("--prompts", tmp_path / "missing.jsonl")


@pytest.mark.parametrize("flags", [[], ["--prompt", "a", "--prompts", "b"], ["--prompt", "a", "--frobnicate"]], ids=str)
def test_wrong_flags_are_a_usage_error(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["generate", *flags])
    assert exit_.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_the_demo_model_is_the_default_and_writes_the_same_words_under_every_method(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = set()
    for method in METHODS:
        capsys.readouterr()
        flags = ["--max-new-tokens", "48", "--temperature", "0.8", "--seed", "1", "--method", method, "--json"]
        assert main(["generate", "--prompt", "Write a function that adds two numbers.", *flags]) == 0
        answers.add(json.loads(capsys.readouterr().out)["text"])
    assert len(answers) == 1
    assert len(answers.pop().split()) > 5


def test_the_command_runs_without_ray_and_says_nothing_but_json(tiny_checkpoint: Path) -> None:
    code = (
        "import sys; from app.cli import main; status = main(sys.argv[1:]);"
        "loaded = [name for name in ('ray', 'fastapi', 'uvicorn') if name in sys.modules];"
        "print(loaded, file=sys.stderr); sys.exit(status)"
    )
    flags = ["generate", "--model", str(tiny_checkpoint), "--prompt", "hi", "--max-new-tokens", "4", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "[]\n"
    assert len(json.loads(done.stdout)["token_ids"]) == 4
