"""Checks for a machine with a GPU that is at hand briefly: bare, without downloads, ten minutes a command."""
