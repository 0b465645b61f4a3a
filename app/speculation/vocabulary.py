"""Reads a target's likeliest successors of every token of its vocabulary, once, into a file of the cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from app.inputs.prompts import Question
from app.speculation.heads import encoded
from engine.errors import ConfigError
from engine.kept_files import cache_folder
from engine.loop import Engine
from engine.model.identity import model_hash
from engine.model.spec import ModelSpec
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target_model.info import MAX_TREE, Target
from speculators.pool import SpeculatorPool
from speculators.successors.vocabulary import (
    BELOW,
    MOST_PAIRS,
    PAIR_TOP_K,
    READ_TOP_K,
    TOP_K,
    VocabularyReader,
    VocabularyRows,
    mean_rows,
)

FOLDER = "vocabulary"  # in the cache
QUESTIONS = (
    ".",  # favours no kind of answer
    "Write a story about a robot.",
    "Write a Python function that adds two numbers.",
    "Tom has 3 apples and buys 4 more. How many apples does he have?",
    "What is the capital of France?",
    "Summarize the text below in one sentence.",
)
"""Questions of several kinds: each row is the mean over the beginnings of answers to them."""


def beginnings(path: Path) -> list[list[int]]:
    """Return the tokens before an answer to each of ``QUESTIONS``, for the model in directory ``path``."""
    return encoded(path, [Question([question]) for question in QUESTIONS])


def n_rows(vocab_size: int) -> int:
    """Return how many rows ``read_rows`` reads after all ``QUESTIONS``."""
    return vocab_size * len(QUESTIONS) * (2 + _n_below(vocab_size))


def read_rows(
    target: Target, starts: Sequence[Sequence[int]], on_rows: Callable[[int], object] = lambda _: None
) -> VocabularyRows:
    """Return the likeliest successors of each token, and of pairs of a token and a successor, averaged over ``starts``.

    The target scores thousands of tokens at a time, as nodes of one tree.

    Args:
        target: whole, in this process.
        starts: tokens before each token; at least one list of at least one token.
        on_rows: called with the number of rows of each step.
    """
    vocab = target.info.spec.vocab_size
    none = np.empty((vocab, 0), np.int32)
    alone = [_read(target, start, VocabularyReader(none, READ_TOP_K), on_rows) for start in starts]
    ids, weights = mean_rows([(each.ids[:, 0], each.weights[:, 0]) for each in alone], vocab, TOP_K)
    below = ids[:, : _n_below(vocab)]
    pairs = [_read(target, start, VocabularyReader(below, TOP_K), on_rows) for start in starts]
    keys = (np.arange(vocab)[:, None] << 32) | below
    pair_rows = mean_rows([each.behind_pairs() for each in pairs], vocab, PAIR_TOP_K)
    return VocabularyRows.of(ids, weights, (keys.ravel(), *pair_rows))


def _n_below(vocab_size: int) -> int:
    return min(max(MOST_PAIRS // vocab_size, 1), BELOW, TOP_K, vocab_size)


def _read(
    target: Target, start: Sequence[int], reader: VocabularyReader, on_rows: Callable[[int], object]
) -> VocabularyReader:
    engine = Engine(target, SpeculatorPool(extra={reader.name: lambda _: reader}))
    # The last token counts as emitted, so it is the root of the first tree, and no second tree follows. A request that
    # ended within the longest path of that tree would not report it to the reader: hence 8 tokens.
    job = Request([*start[:-1]] or [*start], SamplingParams(max_tokens=8), reader.name, MAX_TREE, emitted=[start[-1]])
    while reader.n_read < len(reader.ids):
        n_before = reader.n_read
        seq = engine.submit(job)
        while reader.n_read == n_before:
            assert engine.has_work, "the reader's request ended before its tree was scored"
            engine.step()
        engine.cancel(seq)
        on_rows((reader.n_read - n_before) * reader.ids.shape[1])
    while engine.has_work:  # the target frees the last request
        engine.step()
    return reader


def rows_file(path: Path) -> Path:
    """Return where the rows of the model in directory ``path`` are kept."""
    return cache_folder() / FOLDER / f"{model_hash(path)}.safetensors"


def known_rows(path: Path, spec: ModelSpec) -> VocabularyRows | None:
    """Return the rows of the model in directory ``path``; None if they were never read, or the file is damaged."""
    if not (cache_folder() / FOLDER).is_dir():  # hashing the weights would take time
        return None
    file = rows_file(path)
    try:
        return VocabularyRows.read(file, file.stem, spec.vocab_size) if file.exists() else None
    except ConfigError as error:  # from an older version, or truncated
        print(f"spectra: {error}", file=sys.stderr)
        return None
