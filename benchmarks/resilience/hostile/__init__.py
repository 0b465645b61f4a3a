"""Requests that no client should send, and the clients that send them."""
