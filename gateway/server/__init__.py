"""The listener and its client connections, on top of uvicorn."""
