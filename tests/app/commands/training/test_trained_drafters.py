"""``--drafter``: a checkpoint in its public layout drafts, alone and beside other methods, and changes no text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import main
from engine.drafter.checkpoint.write import write_drafter
from engine.model.loader import load_spec
from tests.app.commands.conftest import Lines
from tests.support.served_drafters import KINDS, drafter_spec, random_checkpoint

SETUP = ("--prompt", "Snow falls on the quiet town", "--max-new-tokens", 24, "--seed", 3)


def saved(kind: str, target: Path, folder: Path) -> tuple[Path, str]:
    """A random drafter in the public layout of its method, and the method."""
    spec = load_spec(target)
    checkpoint = random_checkpoint(drafter_spec(kind, spec))
    write_drafter(folder, checkpoint, spec)
    return folder, checkpoint.spec.method


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_drafts_and_changes_no_text(
    kind: str, spectra: Callable[..., Lines], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder, method = saved(kind, tiny_checkpoint, tmp_path)
    greedy = ((method, 4), ("auto", 2)) if kind in ("eagle 3", "dflash") else ((method, 4),)  # auto measures for long
    for temperature, runs in ((0, greedy), (0.9, ((f"{method}+pld", 2),))):
        flags = (*SETUP, "--temperature", temperature)
        [wanted] = spectra(*flags, "--method", "autoregressive")
        for name, stages in runs:
            [found] = spectra(*flags, "--method", name, "--drafter", folder, "--stages", stages)
            assert found["token_ids"] == wanted["token_ids"], (name, stages)
            assert name == "auto" or found["by_source"][method]["drafted"] > 0


def test_what_cannot_be_is_refused(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = saved("p-eagle", tiny_checkpoint, tmp_path)

    def refused(*flags: object) -> str:
        capsys.readouterr()
        given = [str(flag) for flag in flags]
        assert main(["generate", "--model", str(tiny_checkpoint), "--prompt", "hi", *given]) == 2
        return capsys.readouterr().err

    assert "the drafter given is of method 'p-eagle'" in refused("--drafter", folder, "--method", "eagle")
    assert "has no layer 9" in refused("--drafter", folder, "--method", "p-eagle", "--drafter-layers", "0,1,9")
    assert "drafter_layers is 'all'" in refused("--drafter", folder, "--drafter-layers", "all")
    assert "drafter_layers needs a drafter" in refused("--drafter-layers", "0,1,2")
    assert "depth is 0; it must be 1 to 32" in refused("--drafter", folder, "--drafter-depth", 0)
    assert "config.json cannot be read" in refused("--drafter", tmp_path.parent, "--method", "eagle")
