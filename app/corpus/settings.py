"""Checks the flags of ``spectra corpus build``, and sets what follows from them."""

from __future__ import annotations

import argparse
import re

from app.inputs.stores import DEFAULT_NAMESPACE
from app.offline.flags import check_least
from engine.errors import ConfigError

PIECE = 1024  # tokens
SHORTEST = 8  # tokens
COVER, LIKELY, SAMPLE = "cover", "likely", "sample"  # ways to select texts; a sample is not scored
CPU_BATCH, GPU_BATCH = 2048, 16384  # tokens: fits a core's cache; keeps a GPU busy


def check_build(arguments: argparse.Namespace) -> None:
    """Check the flags; sets ``select``, ``batch_tokens``, ``namespace``, ``devices``, and the folders of the build.

    ``work`` holds texts and scores until the snapshot is written, or longer if ``keeps_work``. ``report`` gets the
    report, as the snapshot's own folder holds only the files of its manifest. Raises ConfigError.
    """
    counts = ("keep", "keep_tokens", "piece_tokens", "batch_tokens", "threads")
    check_least(arguments, dict.fromkeys(counts, 1) | {"min_tokens": 2, "seed": 0})
    if arguments.piece_tokens is not None and arguments.piece_tokens < arguments.min_tokens:
        least = f"at least --min-tokens ({arguments.min_tokens})"
        raise ConfigError(f"--piece-tokens is {arguments.piece_tokens}; it must be {least}")
    arguments.devices = arguments.device.split(",")
    if not all(re.fullmatch(r"cpu|cuda(:\d+)?", one) for one in arguments.devices):
        raise ConfigError(f"--device is {arguments.device}; it must be cpu, cuda, cuda:N or auto")
    if arguments.keep is None and arguments.keep_tokens is None:
        raise ConfigError("give --keep N or --keep-tokens T, the part of the corpus to keep")
    if arguments.select == LIKELY and arguments.unrefined:
        raise ConfigError("--select likely needs scores; leave out --unrefined")
    if arguments.namespace is not None and arguments.redis is None:
        raise ConfigError(f"--namespace is {arguments.namespace}, but there is no store; give --redis URL too")
    for path in arguments.inputs:
        if not path.exists():
            raise ConfigError(f"--input {path}: no such file or folder")
    out = arguments.out.absolute()
    if out.exists() and not arguments.force:
        raise ConfigError(f"--out {out} exists; use --force to replace it")
    if out.exists() and not (out / "manifest.json").is_file():
        raise ConfigError(f"--out {out} exists and is not a snapshot; --force replaces only snapshots")
    arguments.select = arguments.select or (SAMPLE if arguments.unrefined else COVER)
    arguments.batch_tokens = arguments.batch_tokens or (CPU_BATCH if arguments.devices[0] == "cpu" else GPU_BATCH)
    arguments.namespace = arguments.namespace or DEFAULT_NAMESPACE
    arguments.keeps_work = arguments.work is not None
    work, report = (out.with_name(out.name + ending) for ending in (".work", ".report"))
    arguments.out, arguments.work, arguments.report = out, (arguments.work or work).absolute(), report
