"""The documentation site has every document and no broken link, and its pages load nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.site import BESIDE, ROOT

HTML = ROOT / "site" / "html"
LOADED = re.compile(r"""<(?:link[^>]* href|[^a][^>]* (?:src|srcset|data-src))=["']?(?:https?:)?//""")


@pytest.mark.matrix
def test_the_site_builds_with_every_document_and_loads_nothing_from_elsewhere() -> None:
    command = [sys.executable, "-m", "tools.site"]  # fails on broken links
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    documents = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    documents |= {Path(path).with_suffix("") for path in BESIDE.values()}
    pages = {HTML / (name if name.name != "index" else name.parent) / "index.html" for name in documents}
    assert pages == {path for path in HTML.rglob("*.html") if path.name != "404.html"}
    for page in pages:
        assert not LOADED.findall(page.read_text()), page
    assert 'id="engine.protocol.Speculator.propose"' in (HTML / "reference" / "python-api" / "index.html").read_text()
