"""``--drafter``: a checkpoint in its published layout drafts, alone and with other methods, and changes no text."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.drafter.checkpoint.write import write_drafter
from engine.model.loader import load_spec
from tests.support.served_drafters import KINDS, drafter_spec, random_checkpoint
from tests.support.spectra_command import generated, run_cli

SETUP = ("--prompt", "Snow falls on the quiet town", "--max-tokens", 16, "--seed", 3)


def saved(kind: str, target: Path, folder: Path) -> tuple[Path, str]:
    """A random drafter in the published layout of its method, and the method."""
    spec = load_spec(target)
    checkpoint = random_checkpoint(drafter_spec(kind, spec))
    write_drafter(folder, checkpoint, spec)
    return folder, checkpoint.spec.method


@pytest.mark.parametrize(
    "kind",
    ["dspark", "medusa, cut", *(pytest.param(kind, marks=pytest.mark.matrix) for kind in KINDS if kind != "dspark")],
)
def test_a_drafter_drafts_and_changes_no_text(kind: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder, method = saved(kind, tiny_checkpoint, tmp_path)
    runs = [(0, method, 4), (0.9, f"{method}+pld", 2)]
    if kind == "eagle 3":
        runs.append((0, "auto", 2))
    for temperature, name, stages in runs:
        flags = (*SETUP, "--temperature", temperature)
        [plain] = generated(tiny_checkpoint, *flags, "--method", "autoregressive")
        [found] = generated(tiny_checkpoint, *flags, "--method", name, "--drafter", folder, "--stages", stages)
        assert found["token_ids"] == plain["token_ids"], (name, stages)
        assert name == "auto" or found["by_source"][method]["drafted"] > 0


def test_a_drafter_that_does_not_fit_the_flags_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder, _ = saved("p-eagle", tiny_checkpoint, tmp_path)
    for flags, says in (
        (("--drafter", folder, "--method", "eagle"), "the drafter given is of method 'p-eagle'"),
        (("--drafter", folder, "--method", "p-eagle", "--drafter-options", '{"layers": [0, 1, 9]}'), "has no layer 9"),
        (("--drafter", tmp_path.parent, "--method", "eagle"), "lacks the file 'config.json'"),
    ):
        ran = run_cli("generate", "--model", tiny_checkpoint, "--prompt", "hi", *flags)
        assert ran.status == 2
        assert says in ran.err
