"""Compiled code that all packages may use, and how they compile their own."""
