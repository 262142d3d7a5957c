"""Authentication: keys, operators and their sessions."""
