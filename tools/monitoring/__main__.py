"""``python -m tools.monitoring``: write the dashboards and the resource with the alert rules anew."""

from __future__ import annotations

from tools.monitoring.files import ROOT, made


def main() -> None:
    """Write the files, and say which."""
    for path, text in made().items():
        (ROOT / path).write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
