"""The benchmark: slotgate between other gateways, on one machine. `make bench`, or `python -m bench`."""
