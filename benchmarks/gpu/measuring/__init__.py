"""What checks measure with: rows of tables, profiles, steps made by hand, the same work without an engine."""
