"""What does a step cost outside the target? Microseconds of processor time per stream and step, by method and batch.

*Before* is the time between an answer and the next step's send: it delays every stream. *After* is the work that the
engine does once the step is sent, while the target computes.

The engine is the real one (scheduler, pool, composer, statistics); its target is a hash that answers at once
(``speculators.testing``) and whose time is left out. A model that runs between two steps empties the caches, so
``--evict`` MB of memory are read before every answer. Rows:

* ``autoregressive``: nothing may be drafted;
* ``nothing``: a method that is asked at every step and drafts nothing: the way to the speculators and back;
* ``auto-rests``: ``auto`` on a target whose nodes cost as much as steps;
* ``auto-text``, ``auto-text-repeats``: ``auto`` with text sources alone and free nodes, on text that does not repeat,
  and on text that does;
* ``auto-all``: ``auto`` with all sources and free nodes, on text that repeats;
* any method, ``METHOD`` or ``METHOD@NODES``, on text that repeats.

Some seconds a row. The last line of stdout is one JSON document.

    python -m benchmarks.bookkeeping --rows autoregressive,nothing,auto-rests --batches 1,16,64
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.reporting.report import as_line
from benchmarks.support.cache_eviction import CacheEviction
from engine.loop import Engine
from engine.model.spec import ModelSpec
from engine.protocol import Needs, Outcome
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.batch_limits import SchedulerOptions
from engine.step import Step, StepResult, Work, WorkResult
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo
from engine.top_ids import NO_TOP_IDS, TopIds
from speculators.auto.config import AutoConfig
from speculators.autoregressive import Autoregressive
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from speculators.testing import HashTarget

VOCABULARY, TOP_K = 32_000, 16
STEP_S = 0.004  # seconds of a plain step, as the target reports them
COSTLY = StepCosts({1: ((1, 129), (STEP_S, 129 * STEP_S))})  # a node costs as much as a step
FREE = StepCosts({1: ((1, 129), (STEP_S, STEP_S))})
REPEATED = (
    256  # tokens of a text that repeats; one of two may follow each, so a draft's next token is right half the time
)
NODES = 16  # of a tree, unless a row says otherwise
WARM_UP = 200  # steps before the measured ones: functions are compiled, and ``auto`` has tried its sources


@dataclass(frozen=True, slots=True)
class BookkeepingRow:
    """What a row measures."""

    method: str
    repeats: bool = True  # whether the text does
    costs: StepCosts | None = None
    sources: tuple[str, ...] = ()  # of ``auto``

    @classmethod
    def of(cls, name: str) -> BookkeepingRow:
        return ROWS.get(name) or cls(name)


ROWS = {
    "autoregressive": BookkeepingRow("autoregressive", False),
    "nothing": BookkeepingRow("nothing", False),
    "auto-rests": BookkeepingRow("auto", False, COSTLY),
    "auto-text": BookkeepingRow("auto", False, FREE, ("pld",)),
    "auto-text-repeats": BookkeepingRow("auto", True, FREE, ("pld",)),
    "auto-all": BookkeepingRow("auto", True, FREE),
}
USUAL = (*ROWS, "pld", "suffix+token-recycling@16")


class HashText(HashTarget):
    """A target whose next token is a hash of the last two tokens and the step."""

    step = 0

    def prompt(self, seed: int, n: int) -> list[int]:
        """Return a prompt of ``n`` tokens that is like the text."""
        text = [seed]
        while len(text) < n:
            self.step += 1
            text.append(self.next_token(text))
        return text

    def next_token(self, context: Sequence[int]) -> int:
        return super().next_token([context[-2] + 31 * self.step, context[-1]] if len(context) > 1 else context)


class InstantTarget:
    """Implements ``engine.target_model.info.Target``: a hash decides, and ids are read back.

    Args:
        n_blocks: of its cache.
        repeats: whether its text does.
        node_s: seconds that a node adds to the reported time of a step.
    """

    def __init__(self, n_blocks: int, repeats: bool, node_s: float) -> None:
        spec = ModelSpec("llama", 1, 1, 1, 8, 8, VOCABULARY, 1 << 20, ("full_attention",), (), "float32", None)
        self.info = TargetInfo(spec, n_blocks, 64, 1 << 16)
        self._node_s = node_s
        self.language = HashText(REPEATED if repeats else VOCABULARY, 2 if repeats else VOCABULARY, TOP_K)
        self._ends: dict[int, list[int]] = {}  # sequence -> its last two tokens
        self._needs: dict[int, Needs] = {}  # sequence -> what is read back

    def step(self, step: Step) -> StepResult:
        """Answer one micro-batch."""
        self.language.step += 1
        for start in step.starts:
            self._needs[start.seq] = start.needs
        results = [self._answer(work) for work in step.work]
        n_nodes = sum(len(work.tree) for work in step.work if work.tree is not None)
        return StepResult(step.step_id, results, STEP_S + self._node_s * n_nodes)

    def _answer(self, work: Work) -> WorkResult:
        if work.tree is None:
            return self._read(work)
        outcome = self.language.score(self._ends[work.seq], work.tree)
        self._remember(work.seq, outcome)
        reads = work.reads_back and self._needs[work.seq].node_top_k
        top = TopIds.of(outcome.top_ids) if reads else NO_TOP_IDS
        return WorkResult(work.seq, list(outcome.tokens), list(outcome.accepted), top_ids=top)

    def _read(self, work: Work) -> WorkResult:
        outcome = self.language.read_prompt(work.tokens)
        tokens = list(outcome.tokens) if work.draw else []
        self._ends[work.seq] = [*work.tokens, *tokens][-2:]
        if not self._needs[work.seq].prompt_top_k:
            return WorkResult(work.seq, tokens)
        ids, logprobs = outcome.prompt_top_ids, outcome.prompt_top_logprobs
        return WorkResult(work.seq, tokens, prompt_top_ids=ids, prompt_top_logprobs=logprobs)

    def _remember(self, seq: int, outcome: Outcome) -> None:
        self._ends[seq] = [*self._ends[seq], *outcome.tokens][-2:]


def main() -> None:
    """Measure, print a table, then one JSON line."""
    args = _arguments()
    eviction = CacheEviction(args.evict)
    print(f"{'row':<28}{'batch':>6}{'before p50':>12}{'p90':>8}{'after p50':>12}{'p90':>8}{'nodes':>8}")
    results = []
    for name in args.rows.split(","):
        for batch in (int(size) for size in args.batches.split(",")):
            row = measure(name, batch, args.context, args.steps, eviction)
            results.append(row)
            figures = f"{row['before_p50_us']:>12.1f}{row['before_p90_us']:>8.1f}"
            figures += f"{row['after_p50_us']:>12.1f}{row['after_p90_us']:>8.1f}{row['nodes']:>8.1f}"
            print(f"{name:<28}{batch:>6}{figures}", flush=True)
    settings = {"context": args.context, "steps": args.steps, "evict_mb": args.evict}
    print(as_line({"benchmark": "bookkeeping", **settings, "results": results}))


def measure(
    name: str, batch: int, n_context: int, n_steps: int, eviction: CacheEviction
) -> dict[str, float | int | str]:
    """Return a row's figures over ``n_steps`` steps of ``batch`` requests after ``n_context`` tokens each."""
    engine, target = _engine(name, batch, n_context, n_steps)
    while not all(sequence.n_output for sequence in engine.scheduler.sequences):
        engine.step()
    step = engine.next_step()
    seconds: list[tuple[float, float]] = []
    nodes = 0
    for number in range(WARM_UP + n_steps):
        assert step is not None
        result = target.step(step)
        eviction.evict()
        began = time.thread_time()
        engine.take(step, result)
        step = engine.next_step()
        sent = time.thread_time()
        engine.settle()
        settled = time.thread_time()
        if number >= WARM_UP:
            seconds.append((sent - began, settled - sent))
            nodes += sum(len(sequence.tree) for sequence in engine.scheduler.sequences)
    spent = np.array(seconds) / batch * 1e6
    figures = {
        f"{part}_p{percent}_us": round(float(np.percentile(spent[:, i], percent)), 2)
        for i, part in enumerate(("before", "after"))
        for percent in (50, 90)
    }
    return {"row": name, "batch": batch, **figures, "nodes": round(nodes / n_steps / batch, 1)}


def _engine(name: str, batch: int, n_context: int, n_steps: int) -> tuple[Engine, InstantTarget]:
    """Return an engine with ``batch`` requests of ``n_context`` random tokens, and its target."""
    row = BookkeepingRow.of(name)
    method, _, nodes = row.method.partition("@")
    max_tokens = 2 * (WARM_UP + n_steps) * (1 if method == "autoregressive" else 8)
    n_blocks = batch * (n_context + max_tokens + 256) // 64 + batch
    target = InstantTarget(n_blocks, row.repeats, STEP_S if row.costs is COSTLY else 0.0)
    options = SpeculatorOptions(step_costs=row.costs).with_settings(AutoConfig(sources=row.sources))
    pool = SpeculatorPool(options, {"nothing": lambda _: Autoregressive()})
    scheduling = SchedulerOptions(max_sequences=batch, max_step_rows=batch * 129, prefill_chunk=4096)
    engine = Engine(target, pool, scheduling)
    for seed in range(batch):
        prompt = target.language.prompt(seed, n_context)
        engine.submit(Request(prompt, SamplingParams(max_tokens=max_tokens), method, int(nodes or NODES)))
    return engine, target


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(USUAL), help="comma-separated (default: %(default)s)")
    parser.add_argument("--batches", default="1,16,64", help="requests that decode together, comma-separated")
    parser.add_argument("--context", type=int, default=512, help="prompt tokens of each")
    parser.add_argument("--steps", type=int, default=100, help="decode steps per measurement")
    parser.add_argument("--evict", type=int, default=64, metavar="MB", help="read before every answer; 0: none")
    return parser.parse_args()


if __name__ == "__main__":
    main()
