"""How much of a long prompt a speculator learns in one call."""

PIECE = 512  # tokens: the process that calls serves other requests, too
