"""Who is asking: keys, operators and their sessions."""
