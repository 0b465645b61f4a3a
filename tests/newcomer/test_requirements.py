"""The requirements of ``pyproject.toml``, and what a command says when an extra is missing."""

from __future__ import annotations

import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from app.cli import main
from engine.errors import MODULES, ConfigError, require_extra
from tests.newcomer.installation import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_the_constraints_pin_every_requirement_within_its_range() -> None:
    lines = (line.split("==") for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines())
    pins = {canonicalize_name(name): version for name, version in lines}
    asked = [Requirement(line) for group in (PROJECT["dependencies"], *EXTRAS.values()) for line in group]
    for one in asked:
        if one.name != PROJECT["name"]:
            assert one.specifier.contains(pins[canonicalize_name(one.name)]), one


def test_dev_brings_every_extra() -> None:
    (ours,) = (one for line in EXTRAS["dev"] if (one := Requirement(line)).name == PROJECT["name"])
    assert ours.extras == EXTRAS.keys() - {"dev"}


@pytest.mark.parametrize("extra", MODULES)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert extra in EXTRAS
    require_extra(extra, "--flag")
    monkeypatch.setitem(sys.modules, MODULES[extra], None)
    with pytest.raises(ConfigError, match=rf"^--flag needs \S+, which .* pip install 'spectra-serve\[{extra}\]'$"):
        require_extra(extra, "--flag")


def test_a_command_without_its_extra_ends_with_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    said = "spectra completion needs shtab, which is not installed: pip install 'spectra-serve[completion]'"
    assert capsys.readouterr().err == f"spectra: {said}\n"
