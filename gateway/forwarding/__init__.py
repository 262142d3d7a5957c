"""Forwards requests, each from its place in the queue to its end."""
