"""All that operators see and do."""
