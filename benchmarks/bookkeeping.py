"""What a step costs beside the target: microseconds of processor time per request and step, by method and batch.

The engine is the real one (scheduler, pool, composer, statistics); its target is a hash that answers at once
(``speculators.testing``) and whose time is left out. Rows, on text that does not repeat but for the last:

* ``autoregressive``: nothing may be drafted;
* ``nothing``: a method that is asked at every step and drafts nothing: the way to the speculators and back;
* ``auto-rests``: ``auto`` on a target whose nodes cost as much as steps;
* any method by its own name;
* ``auto-drafts``: ``auto`` on one whose nodes are free, at most ``--budget`` of them, text that repeats: drafting and
  learning, composing, counting.

Some seconds a row. The last line of stdout is one JSON document.

    python -m benchmarks.bookkeeping --methods autoregressive,nothing,auto-rests --batches 1,16,64
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

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
from speculators.autoregressive import Autoregressive
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from speculators.testing import HashTarget

ROWS = "autoregressive,nothing,pld,auto-rests,auto-drafts"
VOCABULARY, TOP_K = 32_000, 16
DEAR = StepCosts({1: ((1, 129), (0.01, 1.29))})  # a node costs as much as a step
FREE = StepCosts({1: ((1, 129), (0.01, 0.01))})
REPEATS = 2  # different tokens behind one token, where auto is to draft
WARM_UP = 40  # steps: compiled, and what auto starts with is forgotten


class InstantTarget:
    """Implements ``engine.target_model.info.Target``: a hash decides, ids are read back; ``seconds`` is its time."""

    def __init__(self, n_blocks: int, n_successors: int) -> None:
        spec = ModelSpec("llama", 1, 1, 1, 8, 8, VOCABULARY, 1 << 20, ("full_attention",), (), "float32", None)
        self.info = TargetInfo(spec, n_blocks, 64, 1 << 16)
        self.seconds = 0.0  # of the last step, processor time
        self._language = HashTarget(VOCABULARY, n_successors, TOP_K)
        self._ends: dict[int, list[int]] = {}  # sequence -> its last two tokens
        self._needs: dict[int, Needs] = {}  # sequence -> what is read back

    def step(self, step: Step) -> StepResult:
        """Answer one micro-batch."""
        began = time.thread_time()
        for start in step.starts:
            self._needs[start.seq] = start.needs
        results = [self._answer(work) for work in step.work]
        self.seconds = time.thread_time() - began
        return StepResult(step.step_id, results, self.seconds)

    def _answer(self, work: Work) -> WorkResult:
        if work.tree is None:
            return self._read(work)
        outcome = self._language.score(self._ends[work.seq], work.tree)
        self._remember(work.seq, outcome)
        reads = work.reads_back and self._needs[work.seq].node_top_k
        top = TopIds.of(outcome.top_ids) if reads else NO_TOP_IDS
        return WorkResult(work.seq, list(outcome.tokens), list(outcome.accepted), top_ids=top)

    def _read(self, work: Work) -> WorkResult:
        outcome = self._language.read_prompt(work.tokens)
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
    print(f"{'method':<24}{'batch':>7}{'p50 us':>9}{'p90 us':>9}{'nodes':>8}")
    results = []
    for method in args.methods.split(","):
        for batch in (int(size) for size in args.batches.split(",")):
            row = measure(method, batch, args.context, args.steps, args.budget)
            results.append(row)
            print(f"{method:<24}{batch:>7}{row['p50_us']:>9.1f}{row['p90_us']:>9.1f}{row['nodes']:>8.1f}")
    print(json.dumps({"benchmark": "bookkeeping", "context": args.context, "steps": args.steps, "results": results}))


def measure(method: str, batch: int, n_context: int, n_steps: int, budget: int) -> dict[str, float | int | str]:
    """Decode ``n_steps`` steps of ``batch`` requests behind ``n_context`` tokens each."""
    engine, target = _engine(method, batch, n_context, n_steps, budget)
    while not all(sequence.n_output for sequence in engine.scheduler.sequences):
        engine.step()
    seconds: list[float] = []
    nodes = 0
    for number in range(WARM_UP + n_steps):
        began = time.thread_time()
        engine.step()
        spent = time.thread_time() - began - target.seconds
        if number >= WARM_UP:
            seconds.append(spent / batch)
            nodes += sum(len(sequence.tree) for sequence in engine.scheduler.sequences)
    p50, p90 = np.percentile(seconds, (50, 90)) * 1e6
    mean = nodes / n_steps / batch
    return {
        "method": method,
        "batch": batch,
        "p50_us": round(float(p50), 1),
        "p90_us": round(float(p90), 1),
        "nodes": round(mean, 1),
    }


def _engine(method: str, batch: int, n_context: int, n_steps: int, budget: int) -> tuple[Engine, InstantTarget]:
    """An engine with ``batch`` requests of ``n_context`` random tokens."""
    max_tokens = 2 * (WARM_UP + n_steps) * (1 if method == "autoregressive" else 8)
    n_blocks = batch * (n_context + max_tokens + 256) // 64 + batch
    target = InstantTarget(n_blocks, REPEATS if method == "auto-drafts" else VOCABULARY)
    costs = {"auto-rests": DEAR, "auto-drafts": FREE}.get(method)
    options = SpeculatorOptions(step_costs=costs)
    pool = SpeculatorPool(options, {"nothing": lambda _: Autoregressive()})
    scheduling = SchedulerOptions(max_sequences=batch, max_step_rows=batch * 129, prefill_chunk=4096)
    engine = Engine(target, pool, scheduling)
    rng = np.random.default_rng(0)
    for _ in range(batch):
        prompt = rng.integers(0, VOCABULARY, n_context).tolist()
        name = "auto" if costs is not None else method
        engine.submit(Request(prompt, SamplingParams(max_tokens=max_tokens), name, budget))
    return engine, target


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=ROWS, help=f"comma-separated (default: {ROWS})")
    parser.add_argument("--batches", default="1,16,64", help="requests that decode together, comma-separated")
    parser.add_argument("--context", type=int, default=512, help="prompt tokens of each")
    parser.add_argument("--steps", type=int, default=100, help="decode steps per measurement")
    parser.add_argument("--budget", type=int, default=16, help="nodes per request and step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
