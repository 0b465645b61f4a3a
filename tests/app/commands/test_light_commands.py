"""Help and wrong command lines are answered before anything heavy is imported."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.commands.test_refusals import LIGHT

pytestmark = pytest.mark.cluster

HEAVY = ("torch", "transformers", "ray", "fastapi", "matplotlib", "huggingface_hub")
SERVER = ("ray", "fastapi", "uvicorn", "matplotlib.pyplot")
COMMANDS = [
    *("serve", "generate", "chat", "bench", "load", "heads find", "vocabulary read", "train", "corpus build"),
    *("corpus list", "keys new", "check", "env", "doctor", "plan", "completion", "k8s render"),
]
CHILD = """
import contextlib, io, json, sys
from app.cli import main
commands, modules = map(json.loads, sys.argv[1:])
for command in commands:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            status = main(command)
        except SystemExit as exit_:
            status = exit_.code
    print(json.dumps([command, status, [name for name in modules if name in sys.modules]]))
"""


def run_in_one_process(commands: list[list[str]], modules: tuple[str, ...], folder: Path) -> list[list[object]]:
    """For each command its words, its status, and which modules are loaded after it."""
    words = [sys.executable, "-c", CHILD, json.dumps(commands), json.dumps(modules)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_help_and_refusals_load_nothing_heavy(tmp_path: Path) -> None:
    helps = [["--help"], *([*command.split(), "--help"] for command in COMMANDS)]
    refused = [shlex.split(command) for command, _ in LIGHT]
    expected = [[command, 0, []] for command in helps] + [[command, 2, []] for command in refused]
    assert run_in_one_process(helps + refused, HEAVY, tmp_path) == expected


def test_offline_commands_load_no_server(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"turns": ["hi"]}')
    model = f"--model {tiny_checkpoint} --max-tokens 4"
    commands = [
        f"generate --prompt hi --json {model}".split(),
        f"bench --prompts q.jsonl --methods pld --out out {model}".split(),
    ]
    assert run_in_one_process(commands, SERVER, tmp_path) == [[command, 0, []] for command in commands]
