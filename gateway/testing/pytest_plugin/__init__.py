"""The pytest plugin that comes with slotgate: `fixtures.py` is what pytest loads."""
