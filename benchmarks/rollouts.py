"""Tokens per target forward when prompts are asked again: rollouts, as in reinforcement learning.

Every prompt is sampled ``--rollouts`` times with other seeds, all prompts once before any is asked again. Rows: state
per request (cold), per scope, and per prompt of the scope (``successors.prompts``). With ``--shake`` the weights change
from rollout to rollout, each matrix by so many of its standard deviations of noise; what was learnt stays. Every output
is checked to be identical to autoregressive decoding. The last line of stdout is one JSON document.

    python -m benchmarks.rollouts --prompts DIR [--temperature 1] [--shake 0.02]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.reporting.report import as_line
from app.speculation.heads import encoded, longest_prompt
from benchmarks.support.prompt_sets import questions
from benchmarks.support.reporting import heading, row
from engine.loop import Engine
from engine.model.shard import ModelShard
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.loading import describe_target, load_layers
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from engine.target_model.split import stage_ranges
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from speculators.successors.config import SuccessorConfig

STATES = {
    "per request": SuccessorConfig(),
    "per scope": SuccessorConfig(shared=True),
    "per prompt": SuccessorConfig(shared=True, prompts=1024),
}


def shake(shards: list[ModelShard], size: float, seed: int) -> None:
    """Add noise of ``size`` standard deviations to every matrix of the layers."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in (weight for shard in shards for layer in shard.layers for weight in layer.parameters()):
            if weight.ndim > 1:
                weight.add_(torch.randn(weight.shape, generator=random), alpha=float(size * weight.std()))


def run(
    arguments: argparse.Namespace, pool: SpeculatorPool, method: str, nodes: int
) -> tuple[list[list[list[int]]], list[float]]:
    """The texts of every rollout, and its tokens per forward."""
    options = TargetOptions(str(arguments.model))
    info = describe_target(options, arguments.model)
    shards = [
        load_layers(options, arguments.model, layers, info) for layers in stage_ranges(options, arguments.model, info)
    ]
    target = LocalTarget(info, shards)
    longest = longest_prompt(target, arguments.max_tokens)
    asked = questions(arguments.prompts, arguments.per_kind)
    prompts = [prompt for some in asked.values() for prompt in encoded(arguments.model, some, longest)]
    texts: list[list[list[int]]] = []
    figures: list[float] = []
    for rollout in range(arguments.rollouts):
        if rollout and arguments.shake:
            shake(shards, arguments.shake, rollout)
        params = SamplingParams(
            max_tokens=arguments.max_tokens,
            temperature=arguments.temperature,
            seed=rollout,
            stop_ids=info.spec.eos_ids,
        )
        engine = Engine(target, pool, SchedulerOptions(prefix_cache=False))
        done = dict(engine.run([Request(prompt, params, method, nodes) for prompt in prompts], arguments.batch_size))
        texts.append([done[i].token_ids for i in range(len(prompts))])
        steps = [tokens for completion in done.values() for tokens in completion.stats.step_tokens]
        figures.append(round(sum(steps) / max(1, len(steps)), 3))
    return texts, figures


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--prompts", type=Path, required=True, help="folder with spec_bench, gsm8k and humaneval")
    parser.add_argument("--per-kind", type=int, default=4, help="prompts of each kind (default: 4)")
    parser.add_argument("--rollouts", type=int, default=8, help="samples of every prompt (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer (default: 128)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: greedy (default: 0.8)")
    parser.add_argument("--shake", type=float, default=0.0, help="noise on the weights after each rollout (default: 0)")
    parser.add_argument("--batch-size", type=int, default=12, help="requests that run together (default: 12)")
    parser.add_argument("--max-nodes", type=int, default=64, help="drafted nodes per step (default: 64)")
    parser.add_argument("--methods", nargs="+", default=["suffix", "suffix+token-recycling"], metavar="METHOD")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parsed()
    torch.set_num_threads(1)
    reference, _ = run(arguments, SpeculatorPool(), "autoregressive", 0)
    results: dict[str, list[float]] = {}
    print(heading(("method, state", *(f"rollout {i + 1}" for i in range(arguments.rollouts)), "identical")))
    for method in arguments.methods:
        for state, config in STATES.items():
            pool = SpeculatorPool(SpeculatorOptions().with_settings(config))
            texts, figures = run(arguments, pool, method, arguments.max_nodes)
            results[f"{method}, {state}"] = figures
            print(row((f"{method}, {state}", *(f"{value:.2f}" for value in figures), texts == reference)), flush=True)
    settings = {"temperature": arguments.temperature, "shake": arguments.shake, "max_nodes": arguments.max_nodes}
    print(as_line({"benchmark": "rollouts", **settings, "tokens_per_forward": results}))


if __name__ == "__main__":
    main()
