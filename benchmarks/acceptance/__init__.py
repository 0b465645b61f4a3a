"""Tokens per target forward, by method and setting."""
