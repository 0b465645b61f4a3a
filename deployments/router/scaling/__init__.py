"""Adds and removes pipelines while the router serves."""
