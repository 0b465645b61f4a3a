"""Answers are the target's own, each written once; those of others are read in any form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from app.inputs.prompts import Question, encode_chat
from app.training.data.answer_file import Answer, AnswerFile
from app.training.data.answering import Asker, Asking, as_example, distinct, question_name
from app.training.data.examples import source_of
from app.training.data.given import read_answers, read_texts
from engine.errors import ConfigError
from engine.loop import Engine
from engine.sampling.params import SamplingParams
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from tests.support.tiny_models import saved_checkpoint, tiny_tokenizer

QUESTIONS = [Question(["a fox?", "and then?"]), Question(["a town"]), Question(["a river"]), Question(["a town"])]
N = 9  # tokens


def ask(file: Path, questions: list[Question], seed: int = 0, **how: Any) -> dict[tuple[str, int, int], Answer]:
    path = saved_checkpoint()
    target = LocalTarget.load(TargetOptions(str(path), kv_bytes=1 << 22, max_model_len=120), path)
    params = SamplingParams(max_tokens=N, seed=seed, stop_ids=target.info.spec.eos_ids)
    settings = {"samples": 1, "raw": False, "method": AUTOREGRESSIVE, **how}
    asking = Asking(params=params, temperature=0.8, max_nodes=4, batch_size=3, **settings)
    with AnswerFile(file, {"seed": seed}) as kept:
        engine = Engine(target, SpeculatorPool(SpeculatorOptions()))
        Asker(engine, tiny_tokenizer(), asking).ask(distinct(questions), kept, lambda n: None)
        return dict(kept.answers)


def test_answers_are_greedy_by_half_and_follow_the_conversation(tmp_path: Path) -> None:
    answers = ask(tmp_path / "a", QUESTIONS)
    names = [question_name(question) for question in QUESTIONS[:3]]
    assert set(answers) == {(names[0], 0, 0), (names[0], 0, 1), (names[1], 0, 0), (names[2], 0, 0)}
    assert [answers[name, 0, 0].temperature for name in names] == [0, 0.8, 0]
    first, second = answers[names[0], 0, 0], answers[names[0], 0, 1]
    assert first.source_hash == second.source_hash == source_of(" a fox? ")
    tokenizer = tiny_tokenizer()
    said = {"role": "assistant", "content": tokenizer.decode(first.answer, skip_special_tokens=True)}
    asked = [{"role": "user", "content": turn} for turn in QUESTIONS[0].turns]
    assert first.prompt == encode_chat(tokenizer, asked[:1])
    assert second.prompt == encode_chat(tokenizer, [asked[0], said, asked[1]])
    model = AutoModelForCausalLM.from_pretrained(saved_checkpoint())
    written = model.generate(torch.tensor([first.prompt]), max_new_tokens=N, do_sample=False)[0].tolist()
    example = as_example(first)
    assert example.tokens == written
    assert example.written == first.answer


def test_speculation_and_an_earlier_file_change_no_answer(tmp_path: Path) -> None:
    wanted = ask(tmp_path / "a", QUESTIONS, samples=2)
    assert ask(tmp_path / "b", QUESTIONS, samples=2, method="pld") == wanted
    lines = (tmp_path / "a").read_bytes().splitlines(keepends=True)
    (tmp_path / "c").write_bytes(b"".join(lines[:4]) + lines[4][:20])  # as a kill leaves it
    assert ask(tmp_path / "c", QUESTIONS, samples=2) == wanted
    assert (tmp_path / "c").read_bytes().splitlines()[:4] == [line.rstrip() for line in lines[:4]]


def test_samples_of_one_question_differ_and_the_first_is_greedy(tmp_path: Path) -> None:
    answers = ask(tmp_path / "a", QUESTIONS[1:2], samples=3)
    by_sample = [answers[question_name(QUESTIONS[1]), sample, 0] for sample in range(3)]
    assert [answer.temperature for answer in by_sample] == [0, 0.8, 0.8]
    assert len({tuple(answer.answer) for answer in by_sample}) == 3
    other = ask(tmp_path / "b", QUESTIONS[1:2], samples=3, seed=5)
    same = [other[key].answer == answer.answer for key, answer in answers.items()]
    assert same == [True, False, False]


def test_a_prompt_without_room_for_an_answer_is_not_asked(tmp_path: Path) -> None:
    assert len(ask(tmp_path / "a", [Question(["x" * 300]), Question(["short", "y" * 300, "short"])])) == 1


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"prompt": "x"}\n')
    with pytest.raises(ConfigError, match="something else than answers"), AnswerFile(tmp_path / "a", {}):
        pass


def test_answers_of_others_are_read_in_every_form(tmp_path: Path) -> None:
    tokenizer, file = tiny_tokenizer(), tmp_path / "answers.jsonl"
    asked = [{"role": "user", "content": "a fox"}]
    lines = [
        {"settings": {}},
        {"messages": [*asked, {"role": "assistant", "content": "runs"}]},
        {"prompt": "a fox", "answer": "runs", "temperature": 0},
        {"prompt": encode_chat(tokenizer, asked), "answer": [7, 8], "source_hash": "0123456789abcdef", "more": 1},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second, third = read_answers(file, tokenizer, 320)
    assert (first.tokens, first.first) == (second.tokens, second.first)
    assert first.source == second.source == source_of("a fox")
    assert (first.temperature, second.temperature) == (None, 0)
    assert tokenizer.decode(list(first.written)) == "runs<|end|>"
    assert (third.written, third.source) == ([7, 8], "0123456789abcdef")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "x"}', r"line 1: is none of \{\"prompt\""),
        ('{"prompt": [1], "answer": [320]}', "outside the model's vocabulary, 0 to 319"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "is none of"),
        ('{"prompt": [1], "answer": [2], "source_hash": "me"}', "line 1: Expected `str` matching regex"),
        ("nonsense", "line 1: JSON is malformed"),
        ("", "has no lines"),
    ],
)
def test_what_is_no_answer_is_refused(line: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(line)
    with pytest.raises(ConfigError, match=says):
        read_answers(tmp_path / "a", tiny_tokenizer(), 320)


def test_texts_are_cut_into_pieces_and_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The quick brown fox jumps over the lazy dog. " * 5)
    (tmp_path / "b.jsonl").write_text(json.dumps({"question": "a fox", "answer": "runs"}) + "\n")
    texts = list(read_texts(tmp_path, tiny_tokenizer(), 320, 16))
    of_file = [text for text in texts if text.source == texts[0].source]
    whole = [token for text in of_file for token in text.tokens]
    assert max(len(text.tokens) for text in texts) == 16
    assert tiny_tokenizer().decode(whole) == "<|bos|>" + (tmp_path / "a.txt").read_text()
    assert tiny_tokenizer().decode(texts[-1].tokens) == "<|bos|><|user|>a fox<|end|><|assistant|>runs<|end|>"
    assert texts[-1].source == source_of("a fox")
    assert all(text.first == 1 for text in texts)
