"""The pytest plugin of slotgate. pytest loads `fixtures.py`."""
