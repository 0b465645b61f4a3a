"""Compiles the drafting code before the first request."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np

from engine.kept_files import cache_folder, hold_lock
from engine.protocol import Branch, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.top_ids import TopIds
from engine.tree import EMPTY_TREE
from retrieval_store.index.memory import MemoryIndex
from speculators.auto.prices import Price
from speculators.auto.sharing import share_out
from speculators.auto.streams import CLASSES
from speculators.ngrams.occurrences import Occurrences
from speculators.ngrams.pld import PldConfig, PromptLookup
from speculators.successors.config import SuccessorConfig
from speculators.successors.growth import draft
from speculators.successors.speculator import Successors


def compile_kernels() -> None:
    """Compile all functions that drafting calls, or load them from the cache.

    The first compilation on a machine takes about 20 seconds, so processes call this before their first request. Of
    several processes one compiles, while the others wait and then load the result.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # without a writable cache there is nothing to wait for
            cache_folder().mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_lock(cache_folder() / "compiled"))
        _draft_once()


def start_compiling() -> subprocess.Popen[bytes] | None:
    """Start a process that compiles; return None if the cache has the machine code of these sources."""
    folder = _code_folder()
    if folder is None or any(folder.glob("*.nbi")):
        return None
    code = f"import spectra_serve; from {__name__} import compile_kernels; compile_kernels()"
    command, quiet = [sys.executable, "-Pc", code], subprocess.DEVNULL
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def _code_folder() -> Path | None:
    """Return where the cache keeps the machine code of drafting, by its sources; None if Numba compiles nothing."""
    stats = getattr(draft, "stats", None)
    return None if stats is None else Path(stats.cache_path)


def _draft_once() -> None:
    speculator = Successors(SuccessorConfig(target_rows=64, text_rows=64))
    view = RequestView.of(0, Request([1, 2, 1, 2], SamplingParams(temperature=1.0)), 8)
    ids, logprobs = np.array([[1, 2]], np.int32), np.full((1, 2), -1.0, np.float32)
    speculator.begin(view)
    speculator.observe(view, Outcome([], EMPTY_TREE, prompt_top_ids=ids, prompt_top_logprobs=logprobs))
    speculator.propose(view, 2)
    Occurrences().matches(view.context.view, view.context.view, 1)
    for lookup in (PromptLookup(), PromptLookup(PldConfig(max_branches=2))):
        lookup.begin(view)
        lookup.propose(view, 2)
        lookup.look_back([view], [1])
    share_out([(Branch([1], ""), [1.0] * CLASSES, True)], 1, Price(1, np.ones(2), 0.0, 0.0), 1.0, 0.0, 1.0)
    MemoryIndex([[1, 2]])  # compiles queries: the first snapshot may arrive while requests run
    view.context.extend([1])
    outcome = Outcome([1], EMPTY_TREE, (), TopIds(np.array([-1], np.int32), ids, logprobs))
    speculator.observe(view, outcome)
    speculator.observe_batch([view], [outcome])
    speculator.propose_batch([view], [2])
    speculator.end(view)
