"""The documentation as a site: pages of docs/ and a few beside them, built by Zensical with strict links, offline.

    python -m tools.site            # into site/html; or `make docs`

A page's links to files that are no pages (sources, manifests) become their paths, since a site does not have them;
marks of code blocks that tests read (```sh test) are left out. Everything else is as it lies in docs/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("site/source")  # as zensical.toml has it
BESIDE: Mapping[PurePosixPath, PurePosixPath] = {
    PurePosixPath("k8s/README.md"): PurePosixPath("k8s.md"),
    PurePosixPath("CONTRIBUTING.md"): PurePosixPath("contributing.md"),
    PurePosixPath("CHANGELOG.md"): PurePosixPath("changelog.md"),
}
"""Documents outside of docs/, and what they are on the site."""

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#:\s]*)(#[^)\s]*)?\)")
MARK = re.compile(r"^(\s*```\w+) [\w ]+$", re.MULTILINE)


def place_of(document: PurePosixPath) -> PurePosixPath | None:
    """Where a document of the checkout is on the site; None: it is not there."""
    if document in BESIDE:
        return BESIDE[document]
    return document.relative_to("docs") if document.parts[:1] == ("docs",) else None


def page(text: str, document: PurePosixPath) -> str:
    """A document as a page: ``document`` is its path in the checkout, which its links start from."""
    here = place_of(document)
    assert here is not None

    def link(match: re.Match[str]) -> str:
        shown, target, anchor = match[1], match[2], match[3] or ""
        if not target:
            return match[0]
        path = PurePosixPath(os.path.normpath(document.parent / target))
        place = place_of(path)
        if place is not None:
            return f"[{shown}]({os.path.relpath(place, here.parent)}{anchor})"
        return shown if str(path).endswith(shown.strip("`/")) else f"{shown} (`{path}`)"

    return MARK.sub(r"\1", LINK.sub(link, text))


def prepare(target: Path) -> None:
    """Write all pages and pictures into an empty folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target)
    documents = [PurePosixPath(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]
    for document in (*documents, *BESIDE):
        place = place_of(document)
        assert place is not None
        (target / place).write_text(page((ROOT / document).read_text(encoding="utf-8"), document), encoding="utf-8")


def main() -> int:
    """Build; returns the exit status of Zensical, which is not 0 if a link leads nowhere."""
    prepare(ROOT / SOURCE)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
