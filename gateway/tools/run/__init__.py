"""`slotgate run`: a real chat server without configuration."""
