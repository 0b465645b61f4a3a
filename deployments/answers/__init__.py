"""Answers that outlive their client's connection: the answer keeper runs them and keeps their events."""
