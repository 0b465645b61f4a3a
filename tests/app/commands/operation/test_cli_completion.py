"""``spectra completion``: bash completes with the script what a person would type."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from app.cli import main
from speculators.methods import AVAILABLE

ASK = """\
source {script}
complete -p spectra >/dev/null || exit 3
{words}
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
$(complete -p spectra | sed -E 's/.*-F ([^ ]+).*/\\1/') spectra
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("completion") / "spectra.bash"


def completed(script: Path, capsys: pytest.CaptureFixture[str], *words: str) -> set[str]:
    """What bash offers for the last of ``words``."""
    if not script.exists():
        assert main(["completion", "bash"]) == 0
        script.write_text(capsys.readouterr().out)
    quoted = " ".join(f"'{word}'" for word in ("spectra", *words))
    ask = ASK.format(script=script, words=f"COMP_WORDS=({quoted})")
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=240, cwd=script.parent)
    assert (done.returncode, done.stderr) == (0, "")
    return {line.rstrip() for line in done.stdout.splitlines()}


def test_bash_completes_commands_flags_and_values(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert completed(script, capsys, "ch") == {"chat", "check"}
    assert completed(script, capsys, "k8s", "") == {"render"}
    assert completed(script, capsys, "serve", "--stage-g") == {"--stage-gpus"}
    assert completed(script, capsys, "plan", "--gpu") == {"--gpus", "--gpu-memory-gib"}
    assert completed(script, capsys, "generate", "--method", "") == set(AVAILABLE)
    assert completed(script, capsys, "serve", "--prefix-cache", "") == {"true", "false"}
    assert completed(script, capsys, "env", "--format", "") == {"sh", "k8s"}


def test_bash_completes_files_where_a_flag_takes_one(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    completed(script, capsys, "")
    (script.parent / "questions.jsonl").write_text("")
    assert completed(script, capsys, "generate", "--prompts", "ques") == {"questions.jsonl"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_all_commands_and_their_own_interpreter_takes_the_script(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["completion", shell]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("generate", "doctor", "k8s", "stage-gpus"))
    if (interpreter := shutil.which(shell)) is not None:
        (tmp_path / "script").write_text(told)
        assert subprocess.run([interpreter, "-n", str(tmp_path / "script")], timeout=240).returncode == 0
