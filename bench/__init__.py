"""The benchmark: slotgate and other gateways on one machine. Run `make bench` or `python -m bench`."""
