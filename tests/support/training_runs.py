"""Tiny trainings by ``spectra train``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.cli_run import CliRun
from tests.support.spectra_command import run_here
from tests.support.tiny_models import saved_checkpoint

N_PROMPTS = 24
SIZES = ("--max-new-tokens", 16, "--max-length", 64, "--batch", 4, "--roots", 8, "--measured", 4)


def write_prompts(folder: Path) -> Path:
    """Questions with little in common; every fifth has a second turn."""
    file = folder / "prompts.jsonl"
    lines = [
        {"turns": [f"{chr(97 + i)} tale of {i * i} things", *(["and then?"] if i % 5 == 0 else [])]}
        for i in range(N_PROMPTS)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def run_train(folder: Path, method: str, *flags: object) -> CliRun:
    """Train in ``folder/out`` on the prompts that ``write_prompts`` writes to ``folder``."""
    folder.mkdir(exist_ok=True)
    where = ("--target", saved_checkpoint(), "--out", folder / "out", "--prompts", write_prompts(folder))
    return run_here("train", "--method", method, *where, *SIZES, *flags)
