"""Runs the parts of a command in a worker process and keeps their results."""
