"""Options and error handling that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slotgate.gateway.settings import Settings

__all__ = [
    "ABOVE_0",
    "AT_LEAST_1",
    "CONFIG",
    "EXISTING_FILE",
    "FOLDER",
    "FREE_PORT",
    "HOST",
    "LISTEN_ANY_PORT",
    "SPEEDS",
    "URL",
    "USAGE_ERROR",
    "faults_reported",
    "loaded",
]

USAGE_ERROR = 2
CONFIG = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="SLOTGATE_CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="The configuration, a TOML file.",
)
URL = "URL of the gateway."
HOST = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
FREE_PORT = click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on. Default: any free port."
)
LISTEN_ANY_PORT = "Port to listen on. 0 takes any free port."
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
SPEEDS = "Play answers at the recorded speed, N times as fast, or without pauses (max)."
AT_LEAST_1 = click.IntRange(min=1)
ABOVE_0 = click.FloatRange(min=0, min_open=True)


def loaded(config: Path | None) -> Settings:
    """Load the configuration, or exit with its faults on stderr."""
    from slotgate.gateway.settings import load

    if config is None:
        raise click.UsageError("No configuration: give --config FILE or set SLOTGATE_CONFIG.")
    with faults_reported():
        return load(config, os.environ)


@contextmanager
def faults_reported() -> Iterator[None]:
    """Turn faults of the configuration or of the kept keys into lines on stderr and exit code 2."""
    from slotgate.gateway.settings import SettingsError
    from slotgate.gateway.tools.run.kept_keys import KeysError

    try:
        yield
    except (SettingsError, KeysError) as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(USAGE_ERROR)
