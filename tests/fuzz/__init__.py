"""Random and mutated input for everything that reads bytes from others.

A target (`targets.py`) takes any bytes and fails if a promise is broken. Tests run each target with its
corpus (`tests/corpus/`) and with some mutations of it. `make fuzz` runs them for as long as wanted.
"""
