"""The method of docs/how-to/add-a-method.md, installed as a package next to spectra-serve, and served."""

from __future__ import annotations

import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

from app.inputs.default_model import DEFAULT_MODEL
from tests.newcomer.installation import ROOT, environment, pip
from tests.newcomer.test_how_to import blocks
from tests.support.server_process import running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

PACKAGE = [block for block in blocks(ROOT / "docs/how-to/add-a-method.md") if block.mark.startswith("package")]
(COMMANDS,) = (block.text for block in PACKAGE if block.language == "sh")
(SERVE,) = (line for line in COMMANDS.splitlines() if line.startswith("spectra serve "))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``spectra`` of an environment of its own that has the package, and sees this checkout and its packages."""
    folder, source = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("package")
    for block in PACKAGE:
        if block.language != "sh":
            (source / block.mark.partition(" ")[2]).write_text(block.text)
    python = environment(folder)
    library = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    (library / "checkout.pth").write_text(f"{ROOT}\n")
    pip("--python", str(python), "install", "--no-deps", "--no-index", "--no-build-isolation", str(source))
    program = python.with_name("spectra")
    program.write_text(f"#!{python}\nimport sys\nfrom spectra_serve import main\nsys.exit(main())\n")
    program.chmod(0o755)
    return program


def test_the_command_line_knows_the_method_and_its_settings(program: Path, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True)

    assert "settings of last-time" in run("serve", "--help-all").stdout
    assert "last-time" in run("completion", "bash").stdout
    refused = run("serve", "--last-time", '{"draft_tokens": 65}')
    assert (refused.returncode, refused.stderr) == (
        2,
        "spectra: --last-time: draft_tokens is 65; it must be at most 64\n",
    )


def test_the_method_is_served_by_an_actor_and_joins_others(program: Path, tiny_default: dict[str, str]) -> None:
    flags = (*shlex.split(SERVE)[2:], "--speculator-actors", "1", "--kv-gib", "0.05")
    with running(Path(DEFAULT_MODEL), flags, program=program, environment=tiny_default) as server:
        fields = {
            "return_token_ids": True,
            "model": DEFAULT_MODEL,
            "prompt": "la la la la la la",
            "max_tokens": 48,
            "seed": 1,
        }

        def drafts() -> bool:  # a server is ready before its actors are, and decodes without drafts until then
            answer = server.complete(**fields, speculative={"method": "last-time"}).raise_for_status().json()
            return "last-time" in answer["metrics"]["speculative_decoding"]["by_source"]

        wait_until(drafts, "a draft of the actor")
        answers = {}
        for method in ("autoregressive", "last-time", "last-time+pld", ""):
            speculative = {"speculative": {"method": method}} if method else {}
            answers[method] = server.complete(**fields, **speculative).raise_for_status().json()
        texts = [answer["choices"][0]["token_ids"] for answer in answers.values()]
        assert texts == [texts[0]] * len(texts)
        for method in ("last-time", "last-time+pld", ""):
            by_source = answers[method]["metrics"]["speculative_decoding"]["by_source"]
            assert by_source["last-time"]["drafted"] > 0
        (card,) = server.http.get("/v1/models").json()["data"]
        assert "last-time" in card["speculative"]["methods"]
        refused = server.complete(**fields, speculative={"method": "last-tim"})
        assert (refused.status_code, "last-time" in refused.text) == (400, True)
