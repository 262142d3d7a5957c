"""Who sends a request: keys, operators and their sessions."""
