"""Snapshots change and break, and the Redis dies, while a server answers."""
