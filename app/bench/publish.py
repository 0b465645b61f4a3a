"""What a bench says at its end, from records alone: tables, plots, and the JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.bench.document import document
from app.bench.figures import report
from app.bench.records import Record
from app.bench.table import tables


def publish(records: Sequence[Record], facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write ``tables.md``, the plots and ``bench.json`` to ``folder``, print the tables, return the document.

    The caller prints the document as the last line of stdout (``as_line``), when it has nothing more to say.

    Args:
        records: of every method and setting; at least one.
        facts: further keys of the document, such as ``model`` and ``prompts``; ``notes``, if there, is a list of
            sentences that readers of the tables need, and stands above them too.
        folder: made if missing.
    """
    from app.bench.plots import plots  # matplotlib takes a second to load

    folder.mkdir(parents=True, exist_ok=True)
    found = report(records)
    shown = "\n\n".join([*facts.get("notes", ()), tables(found)])
    print(shown, flush=True)
    (folder / "tables.md").write_text(shown + "\n", encoding="utf-8")
    drawn = plots(found, records, folder)
    result = {**document(found, records), **facts, "plots": [str(path) for path in drawn]}
    (folder / "bench.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return result


def as_line(result: Mapping[str, Any]) -> str:
    """The document as one line of JSON."""
    return json.dumps(result, ensure_ascii=False)
