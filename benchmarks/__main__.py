"""Lists the benchmarks: ``python -m benchmarks``. Each has a ``--help``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent


def benchmark_files() -> Iterator[tuple[str, Path]]:
    """Yield the module and the file of every benchmark: those that ``python -m`` runs."""
    for path in sorted(HERE.glob("**/*.py")):
        if path.name == "__main__.py" and path.parent != HERE:
            yield f"benchmarks.{path.parent.name}", path
        elif path != Path(__file__) and '\nif __name__ == "__main__"' in path.read_text(encoding="utf-8"):
            yield ".".join(path.relative_to(HERE.parent).with_suffix("").parts), path


def main() -> None:
    """Print the module of every benchmark, and the first sentence of its help."""
    files = dict(benchmark_files())
    width = max(map(len, files))
    for module, path in files.items():
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        print(f"{module:{width}}  {' '.join(text.split(chr(10) * 2)[0].split())}")


if __name__ == "__main__":
    main()
