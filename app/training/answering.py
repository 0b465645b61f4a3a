"""Answers that the target writes to the prompts, so that a drafter learns from the target's own text."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import msgspec
from transformers import PreTrainedTokenizerFast

from app.config.serve import ServeConfig
from app.inputs.prompts import Conversation, Question, encode_chat, encode_raw
from app.offline.setup import load_target, sampling
from app.reporting.record_file import RecordFile
from app.reporting.report import bar
from app.training.examples import Example, source_of
from app.training.own_questions import as_questions, beginning_of_turn, open_questions, write_questions
from engine.loop import Engine
from engine.model.identity import model_hash
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.scheduling.scheduler import SchedulerOptions
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool

ANSWERS, REMEDY = "answers.jsonl", "use the same values or another --work folder"


class TrainingAnswer(msgspec.Struct, frozen=True):
    """The target's answer to one turn; token ids are the target's."""

    question: str  # ``name_question`` of the conversation
    source_hash: str  # ``source_of`` the user's first question, which several conversations may begin with
    sample: int  # number of the answer among several to one question
    turn: int
    temperature: float
    prompt: list[int]
    answer: list[int] = []  # with a terminating EOS

    @property
    def key(self) -> tuple[str, int, int]:
        return self.question, self.sample, self.turn

    def example(self) -> Example:
        return Example(self.source_hash, [*self.prompt, *self.answer], len(self.prompt), self.temperature)


@dataclass(frozen=True, slots=True)
class Asker:
    """Has the target answer questions: all first turns, then all second turns, and so on."""

    engine: Engine
    tokenizer: PreTrainedTokenizerFast
    params: SamplingParams  # of all answers, apart from temperature and seed
    arguments: argparse.Namespace  # flags of ``spectra train``

    def ask(self, questions: Mapping[str, Question], file: RecordFile[TrainingAnswer]) -> Iterator[TrainingAnswer]:
        """Add and yield every answer that the file lacks; a conversation ends early if the next one has no room."""
        arguments = self.arguments
        for turn in range(1 if arguments.raw else max(len(question.turns) for question in questions.values())):
            missing = list(self._missing(questions, turn, file))
            requests = [Request(answer.prompt, params, AUTOREGRESSIVE, 0) for answer, params in missing]
            for index, completion in self.engine.run(requests, arguments.batch_size):
                answer = msgspec.structs.replace(missing[index][0], answer=completion.token_ids)
                file.append(answer)
                yield answer

    def _missing(
        self, questions: Mapping[str, Question], turn: int, file: RecordFile[TrainingAnswer]
    ) -> Iterator[tuple[TrainingAnswer, SamplingParams]]:
        """The answers of a turn that are yet to be written, still empty."""
        room = self.engine.target.info.max_model_len - self.params.max_tokens
        for index, (name, question) in enumerate(questions.items()):
            if turn >= len(question.turns):
                continue
            asked = [message["content"] for message in question.context if message["role"] == "user"]
            source = source_of([*asked, *question.turns][0])
            for sample in range(self.arguments.samples):
                earlier = [file.by_key.get((name, sample, before)) for before in range(turn)]
                if (name, sample, turn) in file.by_key or None in earlier:
                    continue
                prompt = self._prompt(question, [answer.answer for answer in earlier if answer is not None])
                if len(prompt) <= room:
                    params = self._sampling(index, name, sample, turn)
                    yield TrainingAnswer(name, source, sample, turn, params.temperature, prompt), params

    def _sampling(self, index: int, question: str, sample: int, turn: int) -> SamplingParams:
        """Parameters of one answer: greedy for each question's first of several answers, or every other question's only
        one; else with random numbers of its own."""
        if sample == 0 and (self.arguments.samples > 1 or index % 2 == 0):
            return msgspec.structs.replace(self.params, temperature=0.0)
        name = f"{self.params.seed} {question} {sample} {turn}".encode()
        seed = int.from_bytes(hashlib.sha256(name).digest()[:8], "little")
        return msgspec.structs.replace(self.params, temperature=self.arguments.temperature, seed=seed)

    def _prompt(self, question: Question, answers: Sequence[list[int]]) -> list[int]:
        if self.arguments.raw:
            return encode_raw(self.tokenizer, question.text)
        conversation = Conversation(question)
        for ids in answers:
            shown = ids[:-1] if ids[-1] in self.params.stop_ids else ids
            text = self.tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            conversation.answer(str(text))
        return encode_chat(self.tokenizer, conversation.ask())


def name_question(question: Question) -> str:
    """A hash of everything that is asked in the conversation."""
    asked = [*(f"{message['role']}: {message['content']}" for message in question.context), *question.turns]
    return source_of("\n".join(asked))


def answer_questions(
    arguments: argparse.Namespace,
    config: ServeConfig,
    questions: Sequence[Question],
    path: Path,
    tokenizer: PreTrainedTokenizerFast,
) -> list[Example]:
    """The target's answers to the questions and to its own ones; the work folder keeps them.

    Those that it lacks are written now, which takes most of the time.
    """
    beginning = beginning_of_turn(tokenizer) if arguments.own_questions else []
    engine, model = lru_cache(partial(_load_engine, arguments, config)), {"model": model_hash(path)[:16]}
    if arguments.own_questions:
        with open_questions(arguments, model, REMEDY) as own:
            if any(number not in own.by_key for number in range(arguments.own_questions)):
                write_questions(engine(), tokenizer, beginning, arguments, own)
        questions = [*questions, *as_questions(own, arguments.own_questions)]
    named = {name_question(question): question for question in questions}
    if not named:
        return []
    flags = {name: getattr(arguments, name) for name in ("max_tokens", "temperature", "samples", "raw", "seed")}
    n_answers = arguments.samples * sum(1 if arguments.raw else len(question.turns) for question in named.values())
    with RecordFile(arguments.work / ANSWERS, TrainingAnswer, model | flags, REMEDY) as file:
        known = sum(answer.question in named for answer in file.records)
        if known < n_answers:
            target, tokens = engine().target, 0
            asker = Asker(engine(), tokenizer, sampling(arguments, arguments.temperature, target), arguments)
            with bar("answers", n_answers, "answer", initial=known) as shown:
                for answer in asker.ask(named, file):
                    tokens += len(answer.answer)
                    shown.set_postfix_str(f"{tokens / shown.format_dict['elapsed']:.0f} tokens/s", refresh=False)
                    shown.update()
    answers = sorted(file.records, key=lambda answer: answer.key)
    return [answer.example() for answer in answers if answer.question in named]


def _load_engine(arguments: argparse.Namespace, config: ServeConfig) -> Engine:
    target = load_target(config)
    size = max(64, arguments.batch_size)
    return Engine(target, SpeculatorPool(SpeculatorOptions()), SchedulerOptions(max_sequences=size, max_waiting=size))
