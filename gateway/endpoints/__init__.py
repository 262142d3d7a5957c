"""The ASGI endpoints: raw callables, one class a file."""
