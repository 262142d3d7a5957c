"""The ASGI callables under /admin."""
