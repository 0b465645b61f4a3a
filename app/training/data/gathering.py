"""All texts of a training: the target's answers to prompts, answers that exist, plain text."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from app.config.serve import ServeConfig
from app.inputs.prompts import Question
from app.offline.setup import load_target, sampling
from app.reporting.report import bar
from app.speculation.vocabulary import known_rows
from app.training.data.answer_file import AnswerFile
from app.training.data.answering import Asker, Asking, as_example, distinct, question_name
from app.training.data.examples import Example
from app.training.data.given import read_answers, read_texts
from engine.loop import Engine
from engine.model.identity import model_hash
from engine.model.spec import ModelSpec
from engine.scheduling.scheduler import SchedulerOptions
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from speculators.registry import warmed

ANSWERS = "answers.jsonl"


def gather(
    arguments: argparse.Namespace,
    config: ServeConfig,
    questions: Sequence[Question],
    path: Path,
    spec: ModelSpec,
    tokenizer: PreTrainedTokenizerFast,
) -> list[Example]:
    """Texts of every source; answers that are not known yet are written, which takes most of the time.

    Raises:
        ConfigError: a file cannot be read, or the work folder holds answers of other settings.
    """
    given = [one for file in arguments.answers for one in read_answers(file, tokenizer, spec.vocab_size)]
    texts = [
        one for file in arguments.texts for one in read_texts(file, tokenizer, spec.vocab_size, arguments.max_length)
    ]
    return [*_answered(arguments, config, distinct(questions), path, tokenizer), *given, *texts]


def _answered(
    arguments: argparse.Namespace,
    config: ServeConfig,
    questions: Sequence[Question],
    path: Path,
    tokenizer: PreTrainedTokenizerFast,
) -> Iterator[Example]:
    if not questions:
        return
    settings = {
        "model": model_hash(path)[:16],
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
        "samples": arguments.samples,
        "raw": arguments.raw,
        "seed": arguments.seed,
    }
    wanted = arguments.samples * sum(1 if arguments.raw else len(question.turns) for question in questions)
    names = {question_name(question) for question in questions}
    with AnswerFile(arguments.work / ANSWERS, settings) as file:
        known = sum(answer.question in names for answer in file.answers.values())
        if known < wanted:
            with bar("answers", wanted, "answer", initial=known) as shown:
                tokens = 0

                def answered(n: int) -> None:
                    nonlocal tokens
                    tokens += n
                    shown.set_postfix_str(f"{tokens / shown.format_dict['elapsed']:.0f} tokens/s", refresh=False)
                    shown.update()

                _asker(arguments, config, path, tokenizer).ask(questions, file, answered)
    yield from (as_example(answer) for _, answer in sorted(file.answers.items()) if answer.question in names)


def _asker(arguments: argparse.Namespace, config: ServeConfig, path: Path, tokenizer: PreTrainedTokenizerFast) -> Asker:
    target = load_target(config)
    pool = SpeculatorPool(warmed(SpeculatorOptions(vocabulary=known_rows(path, target.info.spec))))
    size = max(64, arguments.batch_size)
    asking = Asking(
        params=sampling(arguments, arguments.temperature, target),
        temperature=arguments.temperature,
        samples=arguments.samples,
        raw=arguments.raw,
        method=arguments.answer_method,
        max_nodes=arguments.max_nodes,
        batch_size=arguments.batch_size,
    )
    return Asker(Engine(target, pool, SchedulerOptions(max_sequences=size, max_waiting=size)), tokenizer, asking)
