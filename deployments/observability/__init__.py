"""Logs and traces of every process of the server."""
