"""A command line that is wrong is answered before anything heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "ray", "fastapi", "matplotlib", "huggingface_hub")
CHILD = """
import sys
from app.cli import main
try:
    status = main(sys.argv[2:])
except SystemExit as exit_:
    status = exit_.code
loaded = [name for name in sys.argv[1].split(",") if name in sys.modules]
print([status, loaded], file=sys.stderr)
"""


def run(*flags: str, cwd: Path | None = None) -> tuple[int, list[str], str]:
    """(status, heavy modules that were imported, what was said)."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, ",".join(HEAVY), *flags], capture_output=True, text=True, timeout=400, cwd=cwd
    )
    *said, last = done.stderr.splitlines()
    status, loaded = json.loads(last.replace("'", '"'))
    return status, loaded, "\n".join([done.stdout, *said])


@pytest.mark.parametrize(
    "command",
    [
        "",
        "serve",
        "generate",
        "chat",
        "bench",
        "load",
        "heads find",
        "vocabulary read",
        "train",
        "corpus build",
        "corpus list",
        "keys new",
        "check",
        "env",
        "doctor",
        "plan",
        "completion",
        "k8s render",
    ],
)
def test_help_loads_nothing_heavy(command: str) -> None:
    status, loaded, said = run(*command.split(), "--help")
    assert (status, loaded) == (0, [])
    assert said.lstrip().startswith(f"usage: spectra {command}".rstrip())


BENCH = ("bench", "--methods", "pld", "--prompts", "prompts.jsonl", "--out", "out")
GENERATE = ("generate", "--prompt", "a")
TRAIN = ("train", "--method", "eagle", "--out", "out")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("serve", "--nonsense", "1"), "unrecognized arguments: --nonsense"),
        (("serve", "--method", "magic"), "unknown method 'magic'"),
        (("serve", "--model", "/nowhere"), "model '/nowhere' is neither"),
        (("serve", "--max-nodes", "99999"), "--max-nodes is 99999; it must be at most 4096"),
        (("serve", "--pld", '{"ngrams": 3}'), "--pld has no setting 'ngrams'"),
        (("serve", "--retrieval", "/nowhere"), "--retrieval /nowhere: no such file or folder"),
        (("serve", "--device", "cuda"), "--stage-gpus is 0, but --device is cuda"),
        ((*GENERATE, "--method", "magic"), "unknown method 'magic'"),
        ((*GENERATE, "--model", "/nowhere"), "model '/nowhere' is neither"),
        ((*GENERATE, "--threads", "0"), "--threads is 0; it must be at least 1"),
        ((*GENERATE, "--temperature", "3"), "--temperature is 3.0; it must be 0 to 2"),
        (("generate", "--prompts", "absent.jsonl"), "--prompts absent.jsonl cannot be read"),
        ((*BENCH, "--methods", "pld,magic"), "unknown method 'magic'"),
        ((*BENCH, "--model", "./absent"), "model './absent' is neither"),
        ((*BENCH, "--repeats", "0"), "--repeats is 0; it must be at least 1"),
        (BENCH, "--prompts prompts.jsonl cannot be read"),
        (("heads", "find", "--out", "h", "--prompts", "absent.jsonl"), "--prompts absent.jsonl cannot be read"),
        (("heads", "find", "--out", "h", "--keep", "0"), "--keep is 0; it must be at least 1"),
        (TRAIN, "there is nothing to train on: --prompts, --answers or --texts is needed"),
        (("train", "--method", "magic", "--out", "out"), "argument --method: invalid choice: 'magic'"),
        ((*TRAIN, "--prompts", "absent.jsonl"), "--prompts absent.jsonl cannot be read"),
        ((*TRAIN, "--texts", "absent"), "--texts absent does not exist"),
        ((*TRAIN, "--texts", ".", "--held-out", "1"), "--held-out is 1.0; it must be above 0 and below 1"),
        ((*TRAIN, "--texts", ".", "--steps", "0"), "--steps is 0; it must be at least 1"),
        ((*TRAIN, "--texts", ".", "--rate", "-1"), "--rate is -1.0; it must be above 0"),
        ((*TRAIN, "--texts", ".", "--taps", "1,b"), "'1,b' is no list of layers"),
        ((*TRAIN, "--texts", ".", "--answer-method", "magic"), "unknown method 'magic'"),
        (("bench", "--methods", "magic", "--replay", "x.jsonl", "--tokenizer", "demo"), "unknown method 'magic'"),
        (("bench", "--methods", "pld", "--replay", "x.jsonl", "--tokenizer", "/nowhere"), "--tokenizer /nowhere"),
        (("load", "--url", "http://a:1", "--prompts", "absent.jsonl"), "--prompts absent.jsonl cannot be read"),
        (("load", "--url", "http://a:1", "--concurrency", "0"), "'0' must be a whole number above 0"),
        (("corpus", "build", "--input", "x", "--out", "y", "--keep", "0"), "--keep is 0; it must be at least 1"),
        (("corpus", "stats", "absent"), "absent"),
        (("plan", "--model", "demo"), "the following arguments are required: --gpus"),
    ],
)
def test_a_refusal_loads_nothing_heavy(tmp_path: Path, flags: tuple[str, ...], says: str) -> None:
    status, loaded, said = run(*flags, cwd=tmp_path)
    assert (status, loaded) == (2, []), said
    assert says in said
