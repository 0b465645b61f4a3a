"""``spectra generate``: its output format, and that its text equals that of Hugging Face ``generate``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from app.reporting.colours import PLAIN, coloured
from engine.step_cost import StepCosts
from tests.support.spectra_command import Lines, generated, run_cli

KEYS = (
    *("index", "turn", "text", "token_ids", "finish_reason", "prompt_tokens", "target_forwards", "drafted_tokens"),
    *("accepted_tokens", "tokens_per_forward", "seconds", "step_tokens", "max_nodes_used", "by_source"),
)
EOS = 2
ESCAPE = re.compile(r"\x1b\[(\d+)m")
PROMPTS = ["The quick brown fox", "Snow falls on the quiet town", "Speculation drafts tokens"]

Generate = Callable[..., Lines]


@pytest.fixture
def generate(tiny_checkpoint: Path) -> Generate:
    return lambda *flags: generated(tiny_checkpoint, *flags)


@pytest.fixture
def questions(tmp_path: Path) -> Callable[[list[list[str]]], Path]:
    """Writes a prompt file in the format of Spec-Bench."""

    def write(turns: list[list[str]]) -> Path:
        path = tmp_path / "questions.jsonl"
        path.write_text("".join(json.dumps({"question_id": i, "turns": asked}) + "\n" for i, asked in enumerate(turns)))
        return path

    return write


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> Callable[[str], list[int]]:
    """Forty greedy tokens of Hugging Face for a raw prompt."""
    model = LlamaForCausalLM.from_pretrained(tiny_checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)

    @lru_cache
    def generate(prompt: str) -> list[int]:
        encoded = torch.tensor([tokenizer.backend_tokenizer.encode(prompt).ids])
        ids = model.generate(encoded, attention_mask=torch.ones_like(encoded), max_new_tokens=40, do_sample=False)
        return list(ids[0, encoded.shape[1] :].tolist())

    return generate


@pytest.mark.parametrize(
    ("method", "flags"),
    [
        ("autoregressive", "--batch-size 3 --stages 2"),
        ("pld", "--stages 2 --layer-split 1,3"),
        ("spectra-core", "--batch-size 3"),
        ("pld+spectra-core", "--batch-size 2 --stages 2 --layer-split measured"),
    ],
)
def test_greedy_raw_text_equals_that_of_hugging_face(
    method: str, flags: str, generate: Generate, questions: Callable[..., Path], reference: Callable[[str], list[int]]
) -> None:
    path = questions([[prompt] for prompt in PROMPTS])
    lines = generate("--prompts", path, "--raw", "--max-tokens", 40, "--method", method, *flags.split())
    assert [line["token_ids"] for line in lines] == [reference(prompt) for prompt in PROMPTS]


@pytest.mark.cluster  # importing bitsandbytes starts a process
def test_int8_weights_write_one_text_for_any_split_of_layers(generate: Generate) -> None:
    flags = ("--prompt", PROMPTS[0], "--raw", "--max-tokens", 12, "--method", "pld", "--quantization", "int8")
    [whole], [split] = generate(*flags), generate(*flags, "--stages", 2, "--layer-split", "1,3")
    assert split["token_ids"] == whole["token_ids"]


def test_a_line_has_every_key_and_its_figures_agree(generate: Generate) -> None:
    flags = ("--max-tokens", 60, "--max-nodes", 16, "--temperature", 0.7, "--seed", 5)
    [line] = generate("--prompt", "Snow falls, snow falls, snow", "--method", "pld+spectra-core", *flags)
    assert tuple(line) == KEYS
    assert (line["index"], line["turn"]) == (0, 0)
    assert len(line["token_ids"]) == 1 + sum(line["step_tokens"])
    assert line["target_forwards"] == len(line["step_tokens"])
    assert min(line["step_tokens"]) >= 1
    assert line["tokens_per_forward"] == round(sum(line["step_tokens"]) / line["target_forwards"], 4)
    assert set(line["by_source"]) == {"pld", "spectra-core"}
    for kind in ("drafted", "accepted"):
        assert line[f"{kind}_tokens"] == sum(source[kind] for source in line["by_source"].values()) > 0
    assert line["max_nodes_used"] <= 16
    assert line["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("method", ["auto", "prediction+suffix"])
def test_a_predicted_text_takes_fewer_forwards(
    method: str, generate: Generate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fixed step times: auto must not decide by what a busy machine measures.
    monkeypatch.setattr("app.speculation.step_costs.read_costs", lambda _: StepCosts({1: ((1, 300), (1.0, 1.0))}))
    flags = ("--prompt", PROMPTS[0], "--raw", "--max-tokens", 40)
    [plain] = generate(*flags, "--method", "autoregressive")
    file = tmp_path / "predicted.txt"
    file.write_text(plain["text"])
    [line] = generate(*flags, "--method", method, "--prediction", file)
    assert line["token_ids"] == plain["token_ids"]
    assert line["target_forwards"] < plain["target_forwards"] / 2
    assert line["by_source"]["prediction"]["proposed_accepted"] > 0


def test_a_line_of_a_prompt_file_may_have_its_own_prediction(generate: Generate, tmp_path: Path) -> None:
    [plain] = generate("--prompt", PROMPTS[1], "--max-tokens", 20, "--method", "autoregressive")
    asked = [{"prompt": PROMPTS[1], "prediction": plain["text"]}, {"prompt": PROMPTS[1]}]
    file = tmp_path / "asked.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in asked))
    lines = generate("--prompts", file, "--max-tokens", 20, "--method", "prediction")
    assert [line["token_ids"] for line in lines] == [plain["token_ids"]] * 2
    assert lines[0]["target_forwards"] < lines[1]["target_forwards"] == plain["target_forwards"]
    assert lines[1]["by_source"] == {}


def test_an_end_of_text_token_is_counted_and_is_not_in_the_text(
    generate: Generate, questions: Callable[..., Path], tiny_checkpoint: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    path = questions([[f"question {i}"] for i in range(16)])
    flags = ("--prompts", path, "--max-tokens", 40, "--temperature", 2.0, "--batch-size", 16)
    runs = (generate(*flags, "--seed", seed) for seed in range(20))
    ended = next(found for run in runs if (found := [line for line in run if line["finish_reason"] == "stop"]))
    for line in ended:
        assert line["token_ids"].index(EOS) == len(line["token_ids"]) - 1
        assert line["text"] == tokenizer.decode(line["token_ids"][:-1], skip_special_tokens=True)
        assert len(line["token_ids"]) == 1 + sum(line["step_tokens"])


def test_turns_are_a_conversation_and_lines_keep_their_order_in_a_batch(
    generate: Generate, questions: Callable[..., Path], tiny_checkpoint: Path
) -> None:
    turns = [["one", "two", "three"], ["four"], ["five", "six"], ["seven"]]
    flags = ("--prompts", questions(turns), "--max-tokens", 8, "--method", "pld")
    alone, together = generate(*flags), generate(*flags, "--batch-size", 3)
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
    [raw] = generate(*flags, "--raw", "--limit", 1)
    assert raw["turn"] == 0
    assert raw["prompt_tokens"] == len(tokenizer.backend_tokenizer.encode("one").ids)


def test_more_prompts_than_the_queue_of_a_server_holds_are_all_answered(
    generate: Generate, questions: Callable[..., Path]
) -> None:
    lines = generate("--prompts", questions([["hi"]] * 300), "--raw", "--max-tokens", 1, "--batch-size", 300)
    assert [line["index"] for line in lines] == list(range(300))


def test_colours_change_no_text_and_the_legend_counts_accepted_tokens(tiny_checkpoint: Path) -> None:
    prompt = ("--prompt", "the quick brown fox and the quick brown fox", "--raw", "--max-tokens", 40)
    flags = (*prompt, "--method", "pld+token-recycling", "--temperature", 0.5, "--seed", 3)
    [line] = generated(tiny_checkpoint, *flags)
    shown = run_cli("generate", "--model", tiny_checkpoint, *flags, "--color").out
    text, _, figures = shown.rpartition("\n[")
    text, _, legend = text.rpartition("\n")
    assert ESCAPE.sub("", text) == line["text"]
    assert figures.startswith(f"{len(line['token_ids'])} tokens in {line['target_forwards']} forwards")
    counts = dict(entry.rsplit(" ", 1) for entry in ESCAPE.sub("", legend).split(", "))
    for name, source in line["by_source"].items():
        assert counts.get(name, "0") == str(source["accepted"])
    in_text, in_legend = ({*ESCAPE.findall(part)} for part in (text, legend))
    assert in_text == in_legend
    assert len(in_legend) > 1


def test_a_colour_ends_at_the_end_of_a_line_and_the_targets_own_tokens_have_none() -> None:
    text, legend = coloured([("one\n\ntwo", "a"), (" three", None), ("!", "b"), ("", None)]).rsplit("\n", 1)
    assert text == f"\x1b[36mone{PLAIN}\n\n\x1b[36mtwo{PLAIN} three\x1b[33m!{PLAIN}"
    assert legend == f"\x1b[36ma 1{PLAIN}, \x1b[33mb 1{PLAIN}, the target's own 1"
