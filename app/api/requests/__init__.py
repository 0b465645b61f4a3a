"""From the bytes of a body to requests for the backend: parsing, limits, templates, tokens, what a caller may ask."""
