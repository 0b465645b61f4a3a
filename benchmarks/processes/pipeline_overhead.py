"""What cutting a target into stages costs: a step through channels and stage processes against its bare forwards.

Every stage is a real one in a process of its own, with one thread, as the server starts it, but without Ray. One stream
sends the same step again and again: a root and so many nodes behind a prefix. Alternating with it, the same shards run
the same step one after the other in this process (forwards and verification, no channel): the bare time. Medians.

    python -m benchmarks.processes.pipeline_overhead [--model DIR] [--stages 1 2 4] [--links socket gloo] [--runs 200]

Columns: `bare` is the sum of the bare forwards; `busy` what the stages say they were busy, which differs by what
other processes do to caches and clocks; `step` from sending to result, as a router sees it; `overhead` step - bare.
Two minutes; leave the machine alone meanwhile, since all processes share its cores. The last line of stdout is one JSON
document.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import uvloop
from tqdm import tqdm

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.reporting.report import as_line
from benchmarks.step_time import random_tree
from deployments.pipeline.connection import Pipeline
from deployments.pipeline.endpoints import Endpoints
from deployments.stage.worker import StageWorker
from engine.model.loader import load_spec
from engine.model.ranges import LayerRange, split_layers
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.step import SequenceStart, Step, Work
from engine.target_model.info import TargetInfo, plan_cache
from engine.target_model.loading import load_stage
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions

TRANSPORT = {"socket": "auto", "gloo": "gloo"}
WARM_UP = 20  # steps of each kind


def run_stage(
    options: TargetOptions, path: Path, layers: LayerRange, info: TargetInfo, address: str, wiring: tuple[Any, ...]
) -> None:
    """A stage process: listens, learns the address of the next stage, serves until its parent ends."""
    parent: Connection
    parent, secret, transport = wiring
    torch.set_num_threads(1)
    stage = load_stage(options, path, layers, info)
    worker = StageWorker(stage, torch.device(options.device), address, secret, transport)
    parent.send(worker.address)
    worker.start(parent.recv())
    try:
        parent.recv()
    except EOFError:
        worker.close()


@contextmanager
def pipeline_of(options: TargetOptions, path: Path, info: TargetInfo, link: str) -> Iterator[Endpoints]:
    """The stages of one pipeline, each in a process; they end with the block."""
    spawn, secret = multiprocessing.get_context("spawn"), secrets.token_bytes(32)
    pipes = []
    with tempfile.TemporaryDirectory(prefix="po-") as folder:
        for i, layers in enumerate(split_layers(info.spec.n_layers, options.stages)):
            mine, theirs = spawn.Pipe()
            wiring = (theirs, secret, TRANSPORT[link])
            process = spawn.Process(
                target=run_stage, args=(options, path, layers, info, f"unix:{folder}/{i}", wiring), daemon=True
            )
            process.start()
            theirs.close()  # so that each end hears of the other's
            pipes.append(mine)
        try:
            addresses = [pipe.recv() for pipe in pipes]
            for pipe, following in zip(pipes, [*addresses[1:], None], strict=True):
                pipe.send(following)
            yield Endpoints(addresses[0], addresses[-1], secret, info)
        finally:
            for pipe in pipes:
                pipe.close()


def steps_of(info: TargetInfo, prefix: int, nodes: list[int]) -> tuple[Step, dict[int, Step]]:
    """The step that fills the cache, and one for every number of nodes, to be sent any number of times."""
    rng, vocab = random.Random(0), info.spec.vocab_size
    prompt = [rng.randrange(5, vocab) for _ in range(prefix)]
    blocks = list(range(-(-(prefix + max(nodes) + 2) // info.block_size)))
    start = SequenceStart(0, SamplingParams(max_tokens=512), prefix, Needs())
    fill = Step(0, [Work(0, 0, prompt, new_blocks=blocks)], [start])
    trees = {n: random_tree(n, vocab, rng) for n in nodes}
    return fill, {n: Step(1, [Work(0, prefix, [prompt[0]], trees[n], max_new=512)]) for n in nodes}


async def measure(endpoints: Endpoints, local: LocalTarget, arguments: argparse.Namespace, bar: Any) -> dict[int, Any]:
    """Median milliseconds by number of nodes."""
    pipeline = await Pipeline.connect(endpoints)
    fill, steps = steps_of(endpoints.info, arguments.prefix, arguments.nodes)
    pipeline.send(fill)
    await pipeline.receive()
    local.step(fill)
    found = {}
    for n, step in steps.items():
        seen: list[tuple[float, float, float]] = []
        for _ in range(WARM_UP + arguments.runs):
            began = time.perf_counter()
            pipeline.send(step)
            result = await pipeline.receive()
            whole = time.perf_counter() - began
            assert not result.error, result.error
            seen.append((local.step(step).seconds, sum(result.stage_seconds), whole))
            bar.update()
        bare, busy, whole = (1e3 * statistics.median(column) for column in zip(*seen[WARM_UP:], strict=True))
        found[n] = {"bare_ms": bare, "busy_ms": busy, "step_ms": whole, "overhead_ms": whole - bare}
    pipeline.close()
    return found


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 4], help="(default: 1 2 4)")
    parser.add_argument("--links", nargs="+", choices=list(TRANSPORT), default=list(TRANSPORT), help="(default: both)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[0, 16, 64], help="of the tree (default: 0 16 64)")
    parser.add_argument("--prefix", type=int, default=256, help="tokens in the cache (default: 256)")
    parser.add_argument("--runs", type=int, default=200, help="of each kind of step (default: 200)")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    spec = load_spec(arguments.model)
    rows = [(n, link) for n in arguments.stages for link in arguments.links if n > 1 or link == arguments.links[0]]
    bar = tqdm(total=len(rows) * len(arguments.nodes) * (WARM_UP + arguments.runs), unit="step")
    results = []
    for n_stages, link in rows:
        options = TargetOptions(str(arguments.model), n_stages, "float32", kv_bytes=64 << 20)
        info = plan_cache(spec, options, torch.float32.itemsize)
        local = LocalTarget.load(options, arguments.model)
        with pipeline_of(options, arguments.model, info, link) as endpoints:
            found = uvloop.run(measure(endpoints, local, arguments, bar))
        results += [{"stages": n_stages, "link": link, "nodes": n} | times for n, times in found.items()]
    bar.close()
    print("| stages | link | nodes | bare, ms | busy, ms | step, ms | overhead, ms | step / bare |")
    print("|---|---|---|---|---|---|---|---|")
    for r in results:
        head = f"| {r['stages']} | {r['link'] if r['stages'] > 1 else '-'} | {r['nodes']} "
        times = " | ".join(f"{r[name]:.3f}" for name in ("bare_ms", "busy_ms", "step_ms", "overhead_ms"))
        print(f"{head}| {times} | {r['step_ms'] / r['bare_ms']:.3f} |")
    print(as_line({"model": arguments.model.name, "prefix": arguments.prefix, "steps": results}))


if __name__ == "__main__":
    main()
