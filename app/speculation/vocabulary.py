"""What a target says behind every token of its vocabulary: read once, kept in the cache, used wherever it is there."""

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

QUESTIONS = (
    ".",  # says least about the answer
    "Write a story about a robot.",
    "Write a Python function that adds two numbers.",
    "Tom has 3 apples and buys 4 more. How many apples does he have?",
    "What is the capital of France?",
    "Summarize the text below in one sentence.",
)
"""What a chat model is asked, of several kinds: rows are the mean over answers that begin to these."""


def beginnings(path: Path) -> list[list[int]]:
    """The tokens before an answer to each of ``QUESTIONS``, for the model in directory ``path``."""
    return encoded(path, [Question([question]) for question in QUESTIONS], 1 << 20)


def n_rows(vocab_size: int) -> int:
    """Rows that ``read_rows`` reads behind ``QUESTIONS``."""
    return vocab_size * len(QUESTIONS) * (2 + _n_below(vocab_size))


def read_rows(
    target: Target, starts: Sequence[Sequence[int]], on_rows: Callable[[int], object] = lambda _: None
) -> VocabularyRows:
    """Let a target score its vocabulary behind every beginning, then also what is likeliest behind each token.

    Some thousand tokens are the nodes of one tree.

    Args:
        target: all of it, in this process.
        starts: tokens in front of every token, at least one beginning of at least one token.
        on_rows: called with the number of rows of every step.
    """
    vocab = target.info.spec.vocab_size
    none = np.empty((vocab, 0), np.int32)
    alone = [_read(target, start, VocabularyReader(none, READ_TOP_K), on_rows) for start in starts]
    ids, weights = mean_rows([(each.ids[:, 0], each.weights[:, 0]) for each in alone], vocab, TOP_K)
    below = ids[:, : _n_below(vocab)]
    pairs = [_read(target, start, VocabularyReader(below, TOP_K), on_rows) for start in starts]
    keys = (np.arange(vocab)[:, None] << 32) | below
    return VocabularyRows.of(
        ids, weights, (keys.ravel(), *mean_rows([each.behind_pairs() for each in pairs], vocab, PAIR_TOP_K))
    )


def _n_below(vocab_size: int) -> int:
    """Pairs that are read of every token."""
    return min(max(MOST_PAIRS // vocab_size, 1), BELOW, TOP_K, vocab_size)


def _read(
    target: Target, start: Sequence[int], reader: VocabularyReader, on_rows: Callable[[int], object]
) -> VocabularyReader:
    """Run the reader until it has read all."""
    engine = Engine(target, SpeculatorPool(extra={reader.name: lambda _: reader}))
    # The last token counts as emitted, so that it is the root of the first tree; there is never a second one. The
    # request must outlive the longest path of it, or its speculator would not be told.
    prompt = [*start[:-1]] or [*start]
    job = Request(prompt, SamplingParams(max_tokens=8), reader.name, MAX_TREE, emitted=[start[-1]])
    while reader.n_read < len(reader.ids):
        n_before = reader.n_read
        seq = engine.submit(job)
        while reader.n_read == n_before:
            assert engine.has_work, "the reader's request ended before its tree was scored"
            engine.step()
        engine.cancel(seq)
        on_rows((reader.n_read - n_before) * reader.ids.shape[1])
    while engine.has_work:  # the target forgets the last one
        engine.step()
    return reader


def rows_file(path: Path) -> Path:
    """Where the rows of the model in directory ``path`` are kept."""
    return _folder() / f"{model_hash(path)}.safetensors"


def known_rows(path: Path, spec: ModelSpec) -> VocabularyRows | None:
    """The rows of the model in directory ``path``, if they were ever read."""
    if not _folder().is_dir():
        return None  # a hash of the weights takes time
    file = rows_file(path)
    if not file.exists():
        return None
    try:
        return VocabularyRows.read(file, file.stem, spec.vocab_size)
    except ConfigError as error:  # an older version's, or half a disk
        print(f"spectra: {error}", file=sys.stderr)
        return None


def _folder() -> Path:
    return cache_folder() / "vocabulary"
