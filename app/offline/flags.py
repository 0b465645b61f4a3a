"""Flags that the offline commands share, and their checks; loads nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.devices import AUTO, default_threads, device_named, has_cuda_device
from app.inputs.models import check_model
from app.inputs.stores import DEFAULT_NAMESPACE
from engine.errors import ConfigError
from engine.sampling.params import VerificationRule
from engine.target_model.options import NUMERICS, default_nodes
from speculators.draft_model.config import DraftModelConfig
from speculators.methods import method_names


def add_model(parser: argparse.ArgumentParser, flag: str = "--model", batch_size: int = 1) -> None:
    """Flags that say what runs, which ``flag`` names, and how; ``batch_size`` is the default of that flag."""
    parser.add_argument(
        flag, dest="model", default=DEFAULT_MODEL, help="directory, GGUF file or hub id (default: %(default)s)"
    )
    parser.add_argument("--dtype", help="float32, bfloat16 or float16 (default: float32 on a CPU)")
    parser.add_argument(
        "--device", type=device_named, default=AUTO, help="cpu, cuda, or auto: cuda if torch sees a GPU (default: auto)"
    )
    parser.add_argument("--stages", type=int, default=1, metavar="P", help="pipeline stages, in this process")
    parser.add_argument(
        "--layer-split", default="auto", metavar="S", help="auto, even, measured, or counts: 22,20,20,18"
    )
    parser.add_argument("--stage-memory-gib", metavar="X[,X..]", help="GiB of weights and KV a stage may take")
    parser.add_argument(
        "--numerics",
        choices=NUMERICS,
        default=AUTO,
        help="on cuda: exact (the same bits in every step), fast (cuBLAS), layers (Hugging Face's); default: auto, the "
        "first that can run",
    )
    parser.add_argument(
        "--quantization", choices=["int8", "fp8"], help="int8 (on a CPU: extra int8) or fp8 matrices in the layers"
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=batch_size,
        metavar="B",
        help=f"questions side by side (default: {batch_size})",
    )
    parser.add_argument(
        "--kv-gib",
        type=cache_gib,
        default=AUTO,
        metavar="X",
        help="KV cache, GiB; auto: what a GPU has left beside weights and a step, 0.5 on a CPU (default: auto)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=default_threads(),
        metavar="N",
        help="intra-op threads (default: the physical cores that may be used but one, here %(default)s)",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Flags of the request, without the temperature."""
    add_max_tokens(parser, 128, "per turn")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="nucleus (default: 1)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="0: no limit (default: 0)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the sampling noise (default: 0)")
    parser.add_argument(
        "--verification", choices=get_args(VerificationRule), default="coupled", help="lossless both (default: coupled)"
    )


def add_max_tokens(parser: Any, default: int, scope: str) -> None:
    """Add ``--max-tokens``, and its older spelling, which the help omits; ``parser`` may be a group of flags."""
    parser.add_argument("--max-tokens", type=int, default=default, metavar="N", help=f"{scope} (default: {default})")
    hidden = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("--max-new-tokens", dest="max_tokens", type=int, **hidden)


def add_speculation(parser: argparse.ArgumentParser) -> None:
    """Flags of methods that need something beside the target."""
    parser.add_argument("--max-nodes", type=int, metavar="N", help="drafted nodes per step (default: 64; 63 on cuda)")
    parser.add_argument(
        "--heads",
        type=Path,
        metavar="FILE",
        help="induction heads of the model for pld-plus-a, as 'spectra heads find' writes them (default: found at "
        "first use, and cached)",
    )
    parser.add_argument(
        "--retrieval",
        metavar="DIR|URL",
        help="what spectra, spectra-retrieval and rest look up: a snapshot, as 'spectra corpus build' writes it; a "
        "store of snapshots (a folder or redis://..), whose current one is taken; text or JSON lines, a file or a "
        "folder, indexed at start; 'builtin', this Python's standard library; or 'none' (default: none)",
    )
    parser.add_argument(
        "--retrieval-namespace",
        default=DEFAULT_NAMESPACE,
        metavar="NS",
        help=f"of the store (default: {DEFAULT_NAMESPACE})",
    )
    parser.add_argument(
        "--drafter",
        metavar="DIR",
        help="a drafter that was trained for the model (medusa, eagle, parallelspec-*, p-eagle, dflash): a directory, "
        "as 'spectra train' writes it or as its authors published it, or a hub id",
    )
    parser.add_argument(
        "--drafter-layers", metavar="L,L..", help="layers it reads, where its checkpoint names none or the wrong ones"
    )
    parser.add_argument("--drafter-depth", type=int, metavar="N", help="depth of eagle's trees (default: 6)")
    parser.add_argument(
        "--drafter-beam", type=int, metavar="N", help="nodes that eagle expands at a depth (default: 8)"
    )
    draft = DraftModelConfig()
    parser.add_argument("--draft-model", metavar="DIR", help="the small model of draft-model")
    parser.add_argument(
        "--draft-tokens",
        type=int,
        default=draft.draft_tokens,
        metavar="K",
        help=f"tokens it drafts, one behind the other (default: {draft.draft_tokens})",
    )
    parser.add_argument(
        "--draft-nodes",
        type=int,
        default=draft.tree_nodes,
        metavar="N",
        help=f"nodes of the tree it drafts; 0 is a chain (default: {draft.tree_nodes})",
    )


def cache_gib(given: str) -> float | str:
    """GiB of KV cache, whose range is checked later, or ``auto``."""
    if given == AUTO:
        return given
    try:
        return float(given)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{given!r} must be above 0 (GiB), or auto") from None


def is_cache(given: float | str) -> bool:
    """Whether ``cache_gib`` can be had."""
    return given == AUTO if isinstance(given, str) else 0 < given < float("inf")


def draft_nodes(arguments: argparse.Namespace) -> int:
    """Drafted nodes per step: of the flags, or the device's default."""
    given: int | None = arguments.max_nodes
    return default_nodes(arguments.device) if given is None else given


def check_flags(arguments: argparse.Namespace, temperature: float, *methods: str) -> None:
    """Raises SpectraError if a value is out of range, or a method or model cannot exist; the message names it."""
    is_cuda = arguments.device.partition(":")[0] == "cuda"
    limit = 1 if arguments.limit is None else arguments.limit
    checks = {
        "--limit": (limit >= 1, arguments.limit, "at least 1"),
        "--threads": (arguments.threads >= 1, arguments.threads, "at least 1"),
        "--stages": (arguments.stages >= 1, arguments.stages, "at least 1"),
        "--kv-gib": (is_cache(arguments.kv_gib), arguments.kv_gib, "above 0 (GiB), or auto"),
        "--device": (is_cuda or arguments.device == "cpu", arguments.device, "cpu, cuda or auto"),
        "--max-tokens": (arguments.max_tokens >= 1, arguments.max_tokens, "at least 1"),
        "--temperature": (0 <= temperature <= 2, temperature, "0 to 2"),
        "--top-p": (0 < arguments.top_p <= 1, arguments.top_p, "above 0, at most 1"),
        "--top-k": (arguments.top_k >= 0, arguments.top_k, "0 (no limit) or more"),
        "--batch-size": (arguments.batch_size >= 1, arguments.batch_size, "at least 1"),
        "--max-nodes": (draft_nodes(arguments) >= 0, arguments.max_nodes, "0 or more"),
    }
    for flag, (is_right, value, right) in checks.items():
        if not is_right:
            raise ConfigError(f"{flag} is {value}; it must be {right}")
    for method in methods:
        method_names(method)
    check_model(arguments.model)
    if is_cuda and not has_cuda_device():
        raise ConfigError(f"--device is {arguments.device}, but no CUDA device was found on this machine")


def check_least(arguments: argparse.Namespace, least: Mapping[str, int]) -> None:
    """Raises ConfigError if a flag that was given is below its least value; the message names it."""
    for name, smallest in least.items():
        value = getattr(arguments, name)
        if value is not None and value < smallest:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be at least {smallest}")
