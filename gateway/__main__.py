"""`python -m gateway` is `slotgate`."""

from gateway.cli import main

main(prog_name="slotgate")
