"""`python -m slotgate.gateway` is the command `slotgate`."""

from __future__ import annotations

from slotgate.gateway.cli import main

main(prog_name="slotgate")
