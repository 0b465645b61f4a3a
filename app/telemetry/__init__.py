"""What the edge writes down of every request: one log line, and a count if it was refused."""
