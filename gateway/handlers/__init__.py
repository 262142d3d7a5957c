"""The ASGI callables of the public API, one class a file."""
