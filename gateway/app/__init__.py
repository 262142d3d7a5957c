"""The composition: the only room that knows all others."""
