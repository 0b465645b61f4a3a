"""Questions answered by the target itself: a drafter must fit what the target writes, on contexts that it writes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from transformers import PreTrainedTokenizerFast

from app.inputs.prompts import Conversation, Question, encode_chat, encode_raw
from app.training.data.answer_file import AnswerFile, TrainingAnswer
from app.training.data.examples import Example, source_of
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Asking:
    """How questions are put."""

    params: SamplingParams  # of all answers, but for temperature and seed
    temperature: float  # of those that are not greedy
    samples: int  # answers to every question: of one every other question's is greedy, of more each question's first
    raw: bool  # first turns only, without the chat template
    method: str  # of speculation, which decides no token
    max_nodes: int
    batch_size: int

    def sampling(self, index: int, question: str, sample: int, turn: int) -> SamplingParams:
        """Of one answer; its random numbers are no other's."""
        if sample == 0 and (self.samples > 1 or index % 2 == 0):
            return msgspec.structs.replace(self.params, temperature=0.0)
        name = f"{self.params.seed} {question} {sample} {turn}".encode()
        seed = int.from_bytes(hashlib.sha256(name).digest()[:8], "little")
        return msgspec.structs.replace(self.params, temperature=self.temperature, seed=seed)


@dataclass(frozen=True, slots=True)
class _Job:
    """An answer to be written."""

    question: str
    source: str
    sample: int
    turn: int
    prompt: list[int]
    params: SamplingParams


class Asker:
    """Puts questions to a target, all first turns, then all second ones."""

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerFast, asking: Asking) -> None:
        self._engine, self._tokenizer, self._asking = engine, tokenizer, asking

    def ask(self, questions: Sequence[Question], file: AnswerFile, on_answer: Callable[[int], object]) -> None:
        """Write every answer that the file lacks to it; a turn that leaves no room for its answer ends a conversation.

        Args:
            questions: as ``distinct`` leaves them.
            on_answer: called with the number of tokens of each.

        Raises:
            ConfigError: the tokenizer has no chat template.
        """
        for turn in range(n_turns(questions, self._asking.raw)):
            jobs = list(self._jobs(questions, turn, file))
            method, nodes = self._asking.method, self._asking.max_nodes
            requests = [Request(job.prompt, job.params, method, nodes) for job in jobs]
            for index, completion in self._engine.run(requests, self._asking.batch_size):
                job = jobs[index]
                file.add(
                    TrainingAnswer(
                        question=job.question,
                        source_hash=job.source,
                        sample=job.sample,
                        turn=job.turn,
                        temperature=job.params.temperature,
                        prompt=job.prompt,
                        answer=completion.token_ids,
                    )
                )
                on_answer(len(completion.token_ids))

    def _jobs(self, questions: Sequence[Question], turn: int, file: AnswerFile) -> Iterator[_Job]:
        room = self._engine.target.info.max_model_len - self._asking.params.max_tokens
        for index, question in enumerate(questions):
            name, source = question_name(question), source_of(first_question(question))
            if turn >= len(question.turns):
                continue
            for sample in range(self._asking.samples):
                earlier = [file.answers.get((name, sample, before)) for before in range(turn)]
                if (name, sample, turn) in file.answers or None in earlier:
                    continue
                prompt = self._prompt(question, [answer.answer for answer in earlier if answer is not None])
                if len(prompt) <= room:
                    params = self._asking.sampling(index, name, sample, turn)
                    yield _Job(name, source, sample, turn, prompt, params)

    def _prompt(self, question: Question, answers: Sequence[list[int]]) -> list[int]:
        if self._asking.raw:
            return encode_raw(self._tokenizer, question.text)
        conversation = Conversation(question)
        for ids in answers:
            shown = ids[:-1] if ids[-1] in self._asking.params.stop_ids else ids
            text = self._tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            conversation.answer(str(text))
        return encode_chat(self._tokenizer, conversation.ask())


def distinct(questions: Sequence[Question]) -> list[Question]:
    """The questions, each once."""
    return list({question_name(question): question for question in questions}.values())


def question_name(question: Question) -> str:
    """What names a conversation: all that is asked in it."""
    asked = [*(f"{message['role']}: {message['content']}" for message in question.context), *question.turns]
    return source_of("\n".join(asked))


def first_question(question: Question) -> str:
    """What a user asks first: conversations that begin alike are of one source."""
    asked = (message["content"] for message in question.context if message["role"] == "user")
    return next(asked, question.turns[0])


def n_turns(questions: Sequence[Question], raw: bool) -> int:
    """Turns of the longest conversation that are put."""
    return 1 if raw else max((len(question.turns) for question in questions), default=0)


def as_example(answer: TrainingAnswer) -> Example:
    """What is trained on of an answer."""
    return Example(answer.source_hash, [*answer.prompt, *answer.answer], len(answer.prompt), answer.temperature)
