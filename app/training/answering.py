"""Questions and answers that the target writes, so that a drafter learns from the target's own text.

Questions need no data (Magpie, arXiv 2406.08464): after the beginning of a user's turn, an instruction-tuned target
writes what users asked in its own training. Every text is in the work folder as soon as it is written.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import msgspec
from msgspec.structs import replace
from transformers import PreTrainedTokenizerFast

from app.config.serve import ServeConfig
from app.inputs.chat_templates import render_chat
from app.inputs.prompts import Conversation, Question, encode_chat, encode_plain, encode_raw
from app.inputs.tokenizers import load_tokenizer
from app.offline.setup import load_target, sampling
from app.reporting.record_file import Record, RecordFile
from app.reporting.report import bar
from app.training.examples import Example, source_of
from engine.errors import ConfigError
from engine.loop import Engine
from engine.model.identity import model_hash
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.scheduling.scheduler import SchedulerOptions
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool

QUESTIONS, ANSWERS = "questions.jsonl", "answers.jsonl"
DECISIVE = ("max_tokens", "temperature", "samples", "raw", "seed")  # flags that decide answers
REMEDY = "use the same values or another --work folder"
MAX_QUESTION_TOKENS = 128
PLACEHOLDER = "\x00"  # stands for the question in the chat template
Missing = tuple[Request, Callable[[list[int]], Record]]  # a request, and what makes a record of its token ids


class OwnQuestion(msgspec.Struct, frozen=True):
    """A question; ``prompt`` is empty if the target did not end it, so that the file can be read as prompts."""

    number: int
    prompt: str

    @property
    def key(self) -> int:
        return self.number


class TrainingAnswer(msgspec.Struct, frozen=True):
    """The target's answer to one turn; token ids are the target's."""

    question: str  # ``name_question`` of the conversation
    source_hash: str  # ``source_of`` the user's first question, which several conversations may begin with
    sample: int  # number of the answer among several to one question
    turn: int
    temperature: float
    prompt: list[int]
    answer: list[int]  # with a terminating EOS

    @property
    def key(self) -> tuple[str, int, int]:
        return self.question, self.sample, self.turn

    def example(self) -> Example:
        return Example(self.source_hash, [*self.prompt, *self.answer], len(self.prompt), self.temperature)


def answer_questions(
    arguments: argparse.Namespace, config: ServeConfig, questions: Sequence[Question], path: Path
) -> tuple[list[Example], int]:
    """The target's answers to the questions and to its own ones, and the number of its own ones.

    The work folder keeps them; those that it lacks are written now, which takes most of the time.
    """
    writer = TrainingWriter(lru_cache(partial(_load_engine, arguments, config)), load_tokenizer(path), arguments)
    model, own = {"model": model_hash(path)[:16]}, list[Question]()
    if arguments.own_questions:
        settings = model | {name: getattr(arguments, name) for name in ("temperature", "seed")}
        with RecordFile(arguments.work / QUESTIONS, OwnQuestion, settings, REMEDY, waits=True) as file:
            own = writer.write_questions(file)
    named = {name_question(question): question for question in (*questions, *own)}
    if not named:
        return [], 0
    settings = model | {name: getattr(arguments, name) for name in DECISIVE}
    with RecordFile(arguments.work / ANSWERS, TrainingAnswer, settings, REMEDY, waits=True) as answers:
        writer.write_answers(named, answers)
    ranked = sorted(answers.records, key=lambda answer: answer.key)
    return [answer.example() for answer in ranked if answer.question in named], len(own)


def _load_engine(arguments: argparse.Namespace, config: ServeConfig) -> Engine:
    target = load_target(config)
    size = max(64, arguments.batch_size)
    return Engine(target, SpeculatorPool(SpeculatorOptions()), SchedulerOptions(max_sequences=size, max_waiting=size))


@dataclass(frozen=True, slots=True)
class TrainingWriter:
    """Has the target write the texts that a file lacks."""

    engine: Callable[[], Engine]  # loads it at the first call
    tokenizer: PreTrainedTokenizerFast
    arguments: argparse.Namespace  # flags of ``spectra train``

    def write_questions(self, file: RecordFile[OwnQuestion]) -> list[Question]:
        """The different questions that the target ended among the first ``--own-questions``.

        Raises ConfigError if the tokenizer has no chat template, or the target ended no question.
        """
        prompt, n = beginning_of_turn(self.tokenizer), self.arguments.own_questions
        if numbers := [number for number in range(n) if number not in file.by_key]:
            ends = self.engine().target.info.spec.eos_ids

            def make(number: int, ids: list[int]) -> OwnQuestion:
                text = self.tokenizer.decode(ids[:-1], skip_special_tokens=True) if ids[-1] in ends else ""
                return OwnQuestion(number, str(text).strip())

            temperature, seed = self.arguments.temperature, self.arguments.seed * 1_000_003
            params = SamplingParams(temperature=temperature, max_tokens=MAX_QUESTION_TOKENS, stop_ids=ends)
            seeded = ((number, replace(params, seed=seed + number)) for number in numbers)
            missing = [(Request(prompt, one, AUTOREGRESSIVE, 0), partial(make, number)) for number, one in seeded]
            self._generate("question", n, n - len(missing), [missing], file)
        texts = dict.fromkeys(file.by_key[number].prompt for number in range(n))
        if not any(texts):
            why = f"the target ended none of {n} questions within {MAX_QUESTION_TOKENS} tokens"
            raise ConfigError(f"--own-questions: {why}; use --prompts")
        return [Question([text]) for text in texts if text]

    def write_answers(self, questions: Mapping[str, Question], file: RecordFile[TrainingAnswer]) -> None:
        """Write all first turns, then all second turns, and so on; a conversation ends before a too long prompt."""
        turns = [1 if self.arguments.raw else len(question.turns) for question in questions.values()]
        n, n_known = self.arguments.samples * sum(turns), sum(one.question in questions for one in file.records)
        if n_known < n:
            rounds = (list(self._missing(questions, turn, file)) for turn in range(max(turns)))
            self._generate("answer", n, n_known, rounds, file)

    def _missing(
        self, questions: Mapping[str, Question], turn: int, file: RecordFile[TrainingAnswer]
    ) -> Iterator[Missing[TrainingAnswer]]:
        target = self.engine().target
        base = sampling(self.arguments, self.arguments.temperature, target)
        for index, (name, question) in enumerate(questions.items()):
            if turn >= len(question.turns):
                continue
            asked = [message["content"] for message in question.context if message["role"] == "user"]
            source = source_of([*asked, *question.turns][0])
            for sample in range(self.arguments.samples):
                earlier = [file.by_key.get((name, sample, before)) for before in range(turn)]
                if (name, sample, turn) in file.by_key or None in earlier:
                    continue
                prompt = self._prompt(question, [one.answer for one in earlier if one is not None], base.stop_ids)
                if len(prompt) + base.max_tokens <= target.info.max_model_len:
                    digest = hashlib.sha256(f"{base.seed} {name} {sample} {turn}".encode()).digest()
                    is_greedy = sample == 0 and (self.arguments.samples > 1 or index % 2 == 0)
                    own = {"temperature": 0.0} if is_greedy else {"seed": int.from_bytes(digest[:8], "little")}
                    params = replace(base, **own)
                    make = partial(TrainingAnswer, name, source, sample, turn, params.temperature, prompt)
                    yield Request(prompt, params, AUTOREGRESSIVE, 0), make

    def _prompt(self, question: Question, answers: Sequence[list[int]], ends: Collection[int]) -> list[int]:
        if self.arguments.raw:
            return encode_raw(self.tokenizer, question.text)
        conversation = Conversation(question)
        for ids in answers:
            shown = ids[:-1] if ids[-1] in ends else ids
            text = self.tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            conversation.answer(str(text))
        return encode_chat(self.tokenizer, conversation.ask())

    def _generate(
        self, unit: str, n: int, n_known: int, rounds: Iterable[Sequence[Missing[Record]]], file: RecordFile[Record]
    ) -> None:
        """Run the requests of each round, which may depend on the records of earlier rounds, and append the records."""
        n_tokens, began = 0, time.monotonic()
        with bar(f"{unit}s", n, unit, initial=n_known) as shown:
            for missing in rounds:
                requests = [request for request, _ in missing]
                for index, completion in self.engine().run(requests, self.arguments.batch_size):
                    file.append(missing[index][1](completion.token_ids))
                    n_tokens += len(completion.token_ids)
                    shown.set_postfix_str(f"{n_tokens / (time.monotonic() - began):.0f} tokens/s", refresh=False)
                    shown.update()


def beginning_of_turn(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the ids before a user's first text; raise ConfigError if the tokenizer has no chat template."""
    if not tokenizer.chat_template:
        raise ConfigError("--own-questions needs a chat template, which the target lacks; use --prompts")
    messages = [{"role": "user", "content": PLACEHOLDER}]
    whole = render_chat(tokenizer, messages, prompt=True, origin=tokenizer.name_or_path)
    return encode_plain(tokenizer, whole[: whole.index(PLACEHOLDER)])


def name_question(question: Question) -> str:
    """A hash of everything that is asked in the conversation."""
    asked = [*(f"{message['role']}: {message['content']}" for message in question.context), *question.turns]
    return source_of("\n".join(asked))
