"""The command `slotgate` with all its commands.

Each command imports the modules that it needs when it runs, so that `--help` and `check` start quickly.

Exit codes: 0 for success, 2 for faults that the user has to correct (each on its own line of stderr), 1 where
the help of a command says so, and the exit code of the server for commands that run one.
"""

from __future__ import annotations

import click

from slotgate.gateway.cli.keys import keys
from slotgate.gateway.cli.observing import bench, top, usage
from slotgate.gateway.cli.serving import check, run, serve
from slotgate.gateway.cli.testing import ci, fake, record, replay

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="slotgate", prog_name="slotgate")
def main() -> None:
    """A streaming gateway for llama-server."""


for command in (bench, check, ci, fake, keys, record, replay, run, serve, top, usage):
    main.add_command(command)
