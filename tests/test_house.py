"""What holds for the whole repository: rooms stay small, documents refer to what their readers have."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter, defaultdict
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "benchmarks", "deployments", "engine", "retrieval_store", "speculators", "tools")
MOST_FILES = 15  # of a room, beside its subrooms
MOST_README = 6000  # characters
PAGES = sorted((ROOT / "docs").glob("**/*.md"))
MOST_PAGES, MOST_WORDS = 40, 45_000  # of the documentation without its decisions
MOST_LINES, MOST_COLUMNS = 150, 120  # of a page; tables that a tool writes and the one line of Redis rights are free
GENERATED = re.compile(
    r"<!-- python -m tools.*?<!-- end of the tables? -->|^ACL SETUSER .*?$", re.DOTALL | re.MULTILINE
)
ABSENT = re.compile(r"(METHODS|FACTS|DESIGN|HOUSE)\.md|\.\./shared|\bpaper 00\d|\bissue \d+\b")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
PLACE = re.compile(rf"`((?:{'|'.join((*PACKAGES, 'tests', 'docs'))})/[\w/.-]*)")
BENCHMARK = re.compile(r"python3? -m (benchmarks\.[\w.]+)([^`#|]*)(?!.* of commit)")
COMMAND = re.compile(r"python -m ((?:benchmarks|tools)[\w.]*)(?!.* of commit)")


def tracked(*endings: str) -> list[Path]:
    """Files of the checkout that git knows."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:  # an unpacked archive
        return [path for path in ROOT.rglob("*") if path.suffix in endings and ".venv" not in path.parts]
    return [ROOT / name for name in listed.stdout.split("\n") if name.endswith(endings) and (ROOT / name).is_file()]


DOCUMENTS = [path for path in tracked(".md") if path.parent.name not in ("target", "drafter")]


def test_no_room_has_more_files_than_one_remembers() -> None:
    rooms = Counter(path.parent.relative_to(ROOT) for path in tracked(".py") if path.name != "__init__.py")
    large = {str(room): n for room, n in rooms.items() if room.parts[:1] != ("tests",) and n > MOST_FILES}
    assert not large


def test_every_class_name_is_unique() -> None:
    places = defaultdict(list)
    for path in tracked(".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_the_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text()) <= MOST_README


def test_the_documentation_is_short() -> None:
    pages = [page.read_text() for page in PAGES if page.parent.name != "decisions"]
    assert len(pages) <= MOST_PAGES
    assert sum(len(page.split()) for page in pages) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_few_lines_and_none_too_long(page: Path) -> None:
    text = page.read_text()
    assert text.count("\n") <= MOST_LINES
    assert [line for line in GENERATED.sub("", text).split("\n") if len(line) > MOST_COLUMNS] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_is_there(document: Path) -> None:
    text = document.read_text()
    missing = [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    missing += [place for place in PLACE.findall(text) if not (ROOT / place).exists()]
    for line in text.split("\n"):
        for module in COMMAND.findall(line):
            place = ROOT / PurePosixPath(module.rstrip(".").replace(".", "/"))
            if not (place.with_suffix(".py").exists() or place.is_dir()):
                missing.append(module)
    assert not missing


def test_documented_benchmark_commands_have_known_flags() -> None:
    n_flags = 0
    for document in DOCUMENTS:
        for line in document.read_text().replace("\\\n", " ").split("\n"):
            for found in BENCHMARK.finditer(line):
                place = ROOT / found[1].replace(".", "/")
                files = [*place.rglob("*.py")] if place.is_dir() else [place.with_suffix(".py")]
                source = "".join(file.read_text() for file in files)
                flags = re.findall(r"--[a-z][a-z-]*", found[2])
                n_flags += len(flags)
                assert [flag for flag in flags if f'"{flag}"' not in source] == ["--help"] * ("--help" in flags), line
    assert n_flags > 50


def test_nothing_cites_a_document_that_readers_do_not_have() -> None:
    here = Path(__file__)
    cited = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked(".py", ".md", ".toml")
        if path != here
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if ABSENT.search(line)
    }
    assert not cited
