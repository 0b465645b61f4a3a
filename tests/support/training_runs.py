"""Tiny trainings by ``spectra train``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli_run import CliRun, run_cli
from tests.support.tiny_models import saved_checkpoint

N_PROMPTS = 24
SIZES = ("--max-new-tokens", 24, "--max-length", 64, "--batch", 4, "--roots", 8, "--measured", 4)


def write_prompts(folder: Path) -> Path:
    """Questions without much in common; some have a second turn."""
    file = folder / "prompts.jsonl"
    lines = [
        {"turns": [f"{chr(97 + i)} tale of {i * i} things", *(["and then?"] if i % 5 == 0 else [])]}
        for i in range(N_PROMPTS)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def run_train(capsys: pytest.CaptureFixture[str], folder: Path, method: str, *flags: object) -> CliRun:
    """Train in ``folder/out`` on the prompts in ``folder``, which are written if they are not there."""
    prompts = folder / "prompts.jsonl"
    if not prompts.exists():
        write_prompts(folder)
    where = ("--target", saved_checkpoint(), "--out", folder / "out")
    return run_cli(capsys, "train", "--method", method, *where, "--prompts", prompts, *SIZES, *flags)
