"""Questions that the target writes itself, so that training needs no data (Magpie, arXiv 2406.08464).

After the beginning of a user's turn, an instruction-tuned target writes what users asked in its own training.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

import msgspec
from transformers import PreTrainedTokenizerFast

from app.inputs.chat_templates import render_chat
from app.inputs.prompts import Question, encode_plain
from app.reporting.record_file import RecordFile
from app.reporting.report import bar
from engine.errors import ConfigError
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.drafting import AUTOREGRESSIVE

QUESTIONS = "questions.jsonl"
LONGEST = 128  # tokens of a question
MARK = "\x00"  # stands for the question in the chat template


class OwnQuestion(msgspec.Struct, frozen=True):
    """A question; ``prompt`` is empty if the target did not end it, so that the file can be read as prompts."""

    number: int
    prompt: str

    @property
    def key(self) -> int:
        return self.number


def beginning_of_turn(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the ids before a user's first text; raise ConfigError if the tokenizer has no chat template."""
    if not tokenizer.chat_template:
        raise ConfigError("--own-questions needs a chat template, which the target lacks; use --prompts")
    whole = render_chat(tokenizer, [{"role": "user", "content": MARK}], prompt=True, origin=tokenizer.name_or_path)
    return encode_plain(tokenizer, whole[: whole.index(MARK)])


def write_questions(
    engine: Engine,
    tokenizer: PreTrainedTokenizerFast,
    prompt: list[int],
    arguments: argparse.Namespace,
    file: RecordFile[OwnQuestion],
) -> None:
    """Have the target continue ``prompt`` with each question that the file lacks."""
    missing = [number for number in range(arguments.own_questions) if number not in file.by_key]
    ends = engine.target.info.spec.eos_ids

    def requests() -> Iterator[Request]:
        for number in missing:
            seed = arguments.seed * 1_000_003 + number
            params = SamplingParams(temperature=arguments.temperature, max_tokens=LONGEST, seed=seed, stop_ids=ends)
            yield Request(prompt, params, AUTOREGRESSIVE, 0)

    with bar("questions", arguments.own_questions, "question", initial=len(file.by_key)) as shown:
        for index, completion in engine.run(list(requests()), arguments.batch_size):
            ids = completion.token_ids
            text = str(tokenizer.decode(ids[:-1], skip_special_tokens=True)).strip() if ids[-1] in ends else ""
            file.append(OwnQuestion(missing[index], text))
            shown.update()


def open_questions(arguments: argparse.Namespace, model: Mapping[str, object], remedy: str) -> RecordFile[OwnQuestion]:
    """Open the work folder's file of questions."""
    settings = {**model, "temperature": arguments.temperature, "seed": arguments.seed}
    return RecordFile(arguments.work / QUESTIONS, OwnQuestion, settings, remedy)


def as_questions(file: RecordFile[OwnQuestion], n: int) -> list[Question]:
    """Return the file's different questions among the first ``n``."""
    kept = sorted((one for one in file.records if one.number < n), key=lambda one: one.number)
    texts = dict.fromkeys(one.prompt for one in kept)
    return [Question([text]) for text in texts if text]
