"""Tables in the documentation that are written from the code."""

from __future__ import annotations

from tools import config_tables
from tools.method_table import PAGE, page_with_table


def test_the_table_of_methods_is_current() -> None:
    page = PAGE.read_text()
    assert page_with_table(page) == page, "run python -m tools.method_table"


def test_the_tables_of_the_configuration_are_current() -> None:
    page = config_tables.PAGE.read_text()
    assert config_tables.page_with_tables(page) == page, "run python -m tools.config_tables"
