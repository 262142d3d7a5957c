"""One request, from its place in the queue to its end."""
