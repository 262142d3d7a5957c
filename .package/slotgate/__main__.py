"""`python -m slotgate` is the command `slotgate`."""

from slotgate.gateway.cli import main

main(prog_name="slotgate")
