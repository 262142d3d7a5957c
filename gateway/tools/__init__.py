"""Programs for people: `slotgate run`, `top`, `bench`."""
