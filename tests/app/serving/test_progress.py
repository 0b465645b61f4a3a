"""What a starting server says: every deployment once as it starts and once as it is up, and nothing on stdout."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from app.serving.progress import Progress


def test_each_deployment_is_told_as_it_starts_and_as_it_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for router, target in (("UPDATING", "UPDATING"), ("UPDATING", "HEALTHY"), ("HEALTHY", "HEALTHY")):
        progress.follow({"Router": SimpleNamespace(status=router), "Target-2": SimpleNamespace(status=target)})
    said = capsys.readouterr()
    lines = [line.split("s  ", 1)[1] for line in said.err.splitlines()]
    assert said.out == ""
    assert [line.split(":")[0] for line in lines] == [
        "Router starts",
        "Target-2 starts",
        "Target-2 is up",
        "Router is up",
    ]
