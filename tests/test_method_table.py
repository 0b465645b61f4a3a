"""The table of methods in the documentation."""

from __future__ import annotations

from tools.method_table import PAGE, page_with_table


def test_the_table_of_methods_is_current() -> None:
    page = PAGE.read_text()
    assert page_with_table(page) == page, "run python -m tools.method_table"
