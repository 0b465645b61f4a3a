"""What a target says behind every token of its vocabulary: read once, kept in the cache, used wherever it is there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from app.inputs.cache import cache_folder
from app.inputs.prompts import Question
from app.speculation.heads import encoded
from engine.errors import ConfigError
from engine.loop import Engine
from engine.model.identity import model_hash
from engine.model.spec import ModelSpec
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target.info import MAX_TREE, Target
from speculators.pool import SpeculatorPool
from speculators.successors.vocabulary import TOP_K, VocabularyReader, VocabularyRows

NOTHING = "."  # asked, says least about the answer


def beginning(path: Path) -> list[int]:
    """The tokens before an answer to nothing, for the model in directory ``path``."""
    (tokens,) = encoded(path, [Question([NOTHING])], 1 << 20)
    return tokens


def read_rows(
    target: Target, start: Sequence[int], top_k: int = TOP_K, on_tokens: Callable[[int], object] = lambda _: None
) -> VocabularyRows:
    """Let a target score its vocabulary: some thousand tokens are the nodes of one tree.

    Args:
        target: all of it, in this process.
        start: tokens in front of every token, at least one.
        top_k: successors that are kept of every token.
        on_tokens: called with the number of tokens of every step.
    """
    reader = VocabularyReader(target.info.spec.vocab_size, top_k)
    engine = Engine(target, SpeculatorPool(extra={reader.name: lambda _: reader}))
    # The last token counts as emitted, so that it is the root of the first tree; there is never a second one.
    prompt = [*start[:-1]] or [*start]
    job = Request(prompt, SamplingParams(max_tokens=4), reader.name, MAX_TREE, emitted=[start[-1]])
    while reader.n_read < len(reader.rows):
        n_before = reader.n_read
        seq = engine.submit(job)
        while reader.n_read == n_before:
            engine.step()
        engine.cancel(seq)
        on_tokens(reader.n_read - n_before)
    while engine.has_work:  # the target forgets the last one
        engine.step()
    return reader.rows


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
