"""``spectra completion``: the script knows commands, flags and methods."""

from __future__ import annotations

import pytest

from app.commands.operation.completion import SHELLS
from tests.support.methods import AVAILABLE
from tests.support.spectra_command import run_cli


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_all_commands_flags_and_methods(shell: str) -> None:
    ran = run_cli("completion", shell)
    assert ran.status == 0
    for word in ("generate", "doctor", "k8s", "stage-gpus", *AVAILABLE):
        assert word in ran.out
