"""`slotgate serve`, `check` and `run`: start a gateway, or explain what it would do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from slotgate.gateway.cli.options import (
    CONFIG,
    EXISTING_FILE,
    HOST,
    USAGE_ERROR,
    faults_reported,
    loaded,
)

__all__ = ["check", "run", "serve"]

LISTEN_PORT = "Port to listen on."
PARALLEL = "Number of slots (llama-server --parallel). Default: llama-server's own."
CONTEXT = "Context size in tokens (llama-server --ctx-size). Default: llama-server's own."
SERVER_PROGRAM = (
    "The llama-server to start. Default: $LLAMA_SERVER, else from $PATH, else the Python package."
)


@click.command()
@CONFIG
def serve(config: Path | None) -> None:
    """Start the gateway with a configuration.

    SIGHUP reloads the configuration. SIGTERM or SIGINT lets running streams finish (server.shutdown_grace_s)
    and then ends the process; a second signal ends it at once.
    """
    settings = loaded(config)
    from slotgate.gateway.app.serve import serve as serve_forever
    from slotgate.gateway.settings import load

    sys.exit(serve_forever(settings, load=lambda: load(config, os.environ)))


@click.command()
@CONFIG
def check(config: Path | None) -> None:
    """Validate a configuration and explain what it means.

    Exit code 2 if it has faults; each is printed on its own line.
    """
    settings = loaded(config)
    from slotgate.gateway.settings import explain
    from slotgate.gateway.usage import store_of

    store = store_of(settings.usage)
    if store is not None and (fault := store.fault()):
        click.echo(f"usage.store: {fault}", err=True)
        sys.exit(USAGE_ERROR)
    click.echo(explain(settings), nl=False)


@click.command()
@click.argument("model", type=EXISTING_FILE, required=False, metavar="[MODEL.gguf]")
@HOST
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help=LISTEN_PORT)
@click.option("--parallel", type=click.IntRange(min=1), metavar="N", help=PARALLEL)
@click.option("--ctx", type=click.IntRange(min=1), metavar="N", help=CONTEXT)
@click.option("--llama-server", type=EXISTING_FILE, metavar="PATH", help=SERVER_PROGRAM)
def run(
    *,
    model: Path | None,
    host: str,
    port: int,
    parallel: int | None,
    ctx: int | None,
    llama_server: Path | None,
) -> None:
    """Start llama-server and a gateway in front of it.

    MODEL.gguf is the model to load. Default: $SLOTGATE_MODEL, else the .gguf file in the working folder, else
    the small model of the Python package.
    """
    from slotgate.gateway.tools.run.plan import RunOptions
    from slotgate.gateway.tools.run.run import run as run_both

    options = RunOptions(model, host, port, parallel, ctx, llama_server)
    with faults_reported():
        sys.exit(run_both(options))
