"""``spectra plan``: how a model fits on GPUs, and estimated rates."""

from __future__ import annotations

import argparse
import json
import math

from engine.errors import ConfigError

DESCRIPTION = """\
Show how a model fits on GPUs: replicas, stages and their tensor-parallel ranks, weights and KV cache, concurrent
sequences, seconds to load, and estimated rates without and with drafts. It names a layout for latency and one for
throughput. This needs only a config.json, no weights and no GPU.

  spectra plan --model DIR --gpus 8 --gpu-memory-gib 80
  spectra plan --model meta-llama/Llama-3.3-70B-Instruct --gpus 4 --gpu-memory-gib 80 --quantization int8
  spectra plan --model DIR --gpus 4 --gpu-memory-gib 80 --profile 70b-h100x4     with a profile's times
  spectra plan --model DIR --gpus 4 --gpu-memory-gib 80 --gpu-price 2.5          dollars per million tokens

Rates are estimates by the formulas of docs/explanation/scaling.md; the report lists their inputs. Exit status 1: the
model does not fit.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, metavar="M", help="directory with a config.json, that file, or hub id")
    add("--revision", metavar="R", help="branch, tag or commit of the model on the hub")
    add("--gpus", type=int, required=True, metavar="N", help="GPUs of all replicas")
    add("--gpu-memory-gib", type=float, required=True, metavar="X", help="memory of one GPU")
    add(
        "--usable",
        type=float,
        default=0.9,
        metavar="S",
        help="share of it for weights and KV cache (default: 0.9)",
    )
    add("--stages", type=int, metavar="P", help="only this number of stages (default: all that divide N)")
    ranks = "only this number of ranks in a stage (default: 1, 2, 4 and 8 if model and machine allow them)"
    add("--tensor-parallel", type=int, metavar="T", help=ranks)
    add("--node-gpus", type=int, default=8, metavar="N", help="GPUs of a machine, for T (default: 8)")
    add("--context", type=int, metavar="T", help="tokens of a sequence (default: 4096, or the model's if it has fewer)")
    add("--dtype", metavar="D", help="float32, bfloat16 or float16 (default: the checkpoint's)")
    add("--quantization", choices=["int8", "fp8"], help="int8 (on a CPU: extra int8) or fp8 matrices in the layers")
    speeds = "GB/s at which a stage reads its weights, one or several (default: 1.5,5)"
    add("--read-gbs", default="1.5,5", metavar="X,..", help=speeds)
    rates = parser.add_argument_group("rates", "Inputs of the estimates of tokens per second.")
    add = rates.add_argument
    add("--profile", metavar="NAME", help="stage times of a profile of `spectra serve --simulate`, or of a JSON file")
    add("--memory-tbs", type=float, default=4.3, metavar="X", help="TB/s of the GPU's memory (default: 4.3, an H200)")
    add("--tflops", type=float, default=790.0, metavar="X", help="dense TFLOP/s in the dtype (default: 790, an H200)")
    says = "microseconds per launch of the host, 6 for --numerics layers (default: 0, CUDA graphs)"
    add("--launch-us", type=float, default=0.0, metavar="X", help=says)
    nvlink = "GB/s between GPUs of a machine, in one direction (default: 450, an H100 SXM)"
    add("--nvlink-gbs", type=float, default=450.0, metavar="X", help=nvlink)
    says = "microseconds per exchange of ranks (default: 12, NCCL in a CUDA graph)"
    add("--exchange-us", type=float, default=12.0, metavar="X", help=says)
    add("--link-gbits", type=float, default=0.0, metavar="X", help="Gbit/s between stages (default: 0, no limit)")
    tokens = "of your traffic, as `spectra bench` or `bench --replay` measures it (default: a fit by nodes)"
    add("--tokens-per-forward", type=float, metavar="X", help=tokens)
    nodes = "drafted nodes per step (default: 63 with --tokens-per-forward, else the fastest of 0 to 128)"
    add("--nodes", type=int, metavar="N", help=nodes)
    says = "milliseconds in which a drafter adds its draft to a step (default: 0)"
    add("--draft-ms", type=float, default=0.0, metavar="X", help=says)
    says = "dollars per GPU-hour: adds dollars per million output and input tokens"
    add("--gpu-price", type=float, metavar="X", help=says)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    disks = _rates(arguments.read_gbs)
    from app.planning.plan import make_plan
    from app.planning.report import document, text

    plan = make_plan(arguments, disks)
    print(json.dumps(document(plan)) if arguments.json else text(plan))
    return 0 if plan.choices else 1


def _rates(given: str) -> list[float]:
    """Return bytes per second, or raise ConfigError if a part is no number above 0."""
    try:
        found = [float(part) * 1e9 for part in given.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < one < math.inf for one in found):
        raise ConfigError(f"--read-gbs is {given!r}; it must be numbers above 0, as in 1.5,5")
    return found
