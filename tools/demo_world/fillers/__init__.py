"""Words that are put into templates."""
