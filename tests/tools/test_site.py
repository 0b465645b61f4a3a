"""The documentation site: it builds with strict links, every link leads somewhere, and it asks no other server."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import pytest

from tools.site import BESIDE, ROOT, page

HTML = ROOT / "site" / "html"
LOADED = ("src", "srcset", "data-src")  # and the href of a <link>


class Page(HTMLParser):
    """Links, what is loaded, and ids of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name == "href" and value and tag == "a":
                self.links.add(value)
            elif value and (name in LOADED or (name == "href" and tag == "link")):
                self.loaded.add(value)


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    """Of a site that was just built."""
    command = [sys.executable, "-m", "tools.site"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path: Page(path.read_text()) for path in HTML.rglob("*.html") if path.name != "404.html"}


def test_every_document_is_a_page(pages: dict[Path, Page]) -> None:
    documents = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    documents |= {Path(path).with_suffix("") for path in BESIDE.values()}
    wanted = {HTML / name / "index.html" if name.name != "index" else HTML / "index.html" for name in documents}
    assert wanted == pages.keys()


def test_links_lead_to_pages_and_headings_that_are_there(pages: dict[Path, Page]) -> None:
    lost = []
    for path, found in pages.items():
        for link in found.links | found.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = place / "index.html" if place.is_dir() else place
            if not place.is_file() or (
                parts.fragment and place in pages and unquote(parts.fragment) not in pages[place].ids | {"__skip"}
            ):
                lost.append(f"{path.relative_to(HTML)}: {link}")
    assert not lost


def test_a_page_loads_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert not {link for found in pages.values() for link in found.loaded if urlsplit(link).netloc}
    text = "".join(path.read_text() for path in pages)
    assert 'class="mermaid"' not in text  # whose script is at a CDN


def test_the_reference_has_the_docstrings(pages: dict[Path, Page]) -> None:
    ids = pages[HTML / "reference" / "index.html"].ids
    assert {"engine.protocol.Speculator.propose", "speculators.registry.create", "app.builder.build_app"} <= ids
    assert "deployments.ingress.deployment.Ingress.generate_stream" in ids


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[a](methods.md#x)", "[a](../methods.md#x)"),
        ("[a](../k8s/README.md)", "[a](../k8s.md)"),
        ("[a](https://example.org/b.md)", "[a](https://example.org/b.md)"),
        ("[a](#here)", "[a](#here)"),
        ("[`stage/stage.py`](../engine/stage/stage.py)", "`stage/stage.py`"),
        ("[the loop](../engine/loop.py)", "the loop (`engine/loop.py`)"),
        ("![a](../images/soak.png)", "![a](../images/soak.png)"),
        ("```sh test\nls\n```", "```sh\nls\n```"),
    ],
)
def test_links_of_a_document_become_those_of_a_page(link: str, becomes: str) -> None:
    document = PurePosixPath("docs/how-to/serve.md")
    text = (
        link.replace("](methods", "](../methods")
        .replace("](../k8s", "](../../k8s")
        .replace("](../engine", "](../../engine")
    )
    assert page(text, document) == becomes
