"""`slotgate ci`, `fake`, `record` and `replay`: tests without a GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from slotgate.gateway.cli.options import (
    ABOVE_0,
    AT_LEAST_1,
    EXISTING_FILE,
    FOLDER,
    FREE_PORT,
    HOST,
    LISTEN_ANY_PORT,
    SPEEDS,
    USAGE_ERROR,
    faults_reported,
)

__all__ = ["ci", "fake", "record", "replay"]

SCRIPT = "What the scripted model says, a TOML file. Default: built-in answers."
API_KEY_ENV = "Environment variable with the API key of the server. Default: client keys are forwarded."
NEW_FILE = click.Path(dir_okay=False, path_type=Path)


def _in_a_folder(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Check that the folder of an output file exists: the file itself is written only at the end."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"'{path}': there is no folder {path.parent}.")
    return path


@click.command()
@click.option("--upstream", required=True, metavar="URL", help="The server to record, as http://host:port.")
@click.option("--to", "folder", required=True, type=FOLDER, metavar="FOLDER", help="The folder to write to.")
@HOST
@click.option("--port", type=click.IntRange(0, 65535), default=8090, show_default=True, help=LISTEN_ANY_PORT)
@click.option("--api-key-env", metavar="NAME", help=API_KEY_ENV)
def record(*, upstream: str, folder: Path, host: str, port: int, api_key_env: str | None) -> None:
    """Forward requests to a server and record the answers."""
    from slotgate.gateway.testing.cassette.listening import record as record_until_stopped

    api_key = None if api_key_env is None else os.environ.get(api_key_env)
    if api_key_env is not None and not api_key:
        raise click.UsageError(f"The environment variable {api_key_env} (--api-key-env) is not set.")
    sys.exit(record_until_stopped(upstream, folder, host, port, api_key))


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--speed", default="recorded", show_default=True, metavar="recorded|N|max", help=SPEEDS)
@HOST
@click.option("--port", type=click.IntRange(0, 65535), default=8091, show_default=True, help=LISTEN_ANY_PORT)
def replay(*, folder: Path, speed: str, host: str, port: int) -> None:
    """Answer requests from the recording in FOLDER, without a model."""
    from slotgate.gateway.testing.cassette.listening import replay as replay_until_stopped
    from slotgate.gateway.testing.cassette.player import speed_of

    try:
        sys.exit(replay_until_stopped(folder, host, port, speed_of(speed)))
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--speed") from wrong


@click.command()
@click.option("--script", type=EXISTING_FILE, metavar="FILE", help=SCRIPT)
@HOST
@FREE_PORT
@click.option(
    "--ready",
    type=NEW_FILE,
    callback=_in_a_folder,
    metavar="FILE",
    help="Write the URL here once it listens.",
)
@click.option("--alias", metavar="NAME", help="Name of its model. Default: the script's.")
@click.option(
    "-np", "--parallel", "slots", type=AT_LEAST_1, metavar="N", help="Number of slots. Default: the script's."
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="Seed of random answers. Default: the script's. The same seed gives the same answers.",
)
def fake(
    *,
    script: Path | None,
    host: str,
    port: int,
    ready: Path | None,
    alias: str | None,
    slots: int | None,
    seed: int | None,
) -> None:
    """Run a scripted llama-server, for tests without a GPU.

    The options override the script's settings.
    """
    from slotgate.gateway.testing.fake import ScriptError
    from slotgate.gateway.testing.fake_program import FakeOptions, run_fake

    options = FakeOptions(script, host, port, ready, alias, slots, seed)
    try:
        sys.exit(run_fake(options, os.environ))
    except ScriptError as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(USAGE_ERROR)


@click.command()
@click.option("--script", type=EXISTING_FILE, metavar="FILE", help=SCRIPT)
@click.option(
    "--replay", type=FOLDER, metavar="FOLDER", help="Use a recording instead of the scripted model."
)
@click.option("--speed", default="max", show_default=True, metavar="recorded|N|max", help=SPEEDS)
@click.option(
    "--model",
    type=EXISTING_FILE,
    metavar="GGUF",
    help="Use a real llama-server with this model instead of the scripted model.",
)
@click.option(
    "--upstream", metavar="URL", help="Use a llama-server that runs already instead of the scripted model."
)
@HOST
@FREE_PORT
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let web pages of this origin call the gateway. May be repeated. Default: none.",
)
@click.option(
    "--ready",
    type=NEW_FILE,
    callback=_in_a_folder,
    metavar="FILE",
    help="Write URL and key here, as JSON, once it is ready.",
)
@click.option(
    "--junit",
    type=NEW_FILE,
    callback=_in_a_folder,
    metavar="FILE",
    help="Write all requests and failures here, as JUnit XML.",
)
@click.option(
    "--start-s",
    type=ABOVE_0,
    default=120.0,
    show_default=True,
    help="Fail if the model is not ready after N seconds.",
)
@click.option(
    "--max-s", type=ABOVE_0, default=3600.0, show_default=True, help="Stop after N seconds (exit code 124)."
)
@click.option(
    "--expect",
    "expected",
    multiple=True,
    metavar="CODE",
    help="Requests may fail with this error code. May be repeated.",
)
@click.option(
    "--key",
    metavar="KEY",
    help="Key of the gateway. Default: a new one.",
    envvar="SLOTGATE_CI_KEY",
    show_envvar=True,
)
@click.option("--control", is_flag=True, hidden=True)
@click.option("--with-parent", is_flag=True, help="Stop when the parent process ends.")
@click.option("--verbose", is_flag=True, help="Log every request. Default: only warnings and errors.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def ci(
    *,
    script: Path | None,
    replay: Path | None,
    speed: str,
    model: Path | None,
    upstream: str | None,
    expected: tuple[str, ...],
    **rest: Any,  # noqa: ANN401
) -> None:
    """Run your tests against a gateway with a scripted model.

    COMMAND gets SLOTGATE_URL and SLOTGATE_KEY (and the OpenAI and Anthropic clients' own variables). Without
    a command the gateway runs until a signal. The exit code is the command's, or 1 if a request failed that
    the script did not make fail.
    """
    from slotgate.gateway.testing.cassette import CassetteError
    from slotgate.gateway.testing.cassette.player import speed_of
    from slotgate.gateway.testing.ci.options import CiOptions
    from slotgate.gateway.testing.ci.run import run_ci
    from slotgate.gateway.testing.fake import ScriptError
    from slotgate.gateway.tools.run.find import NotFoundError

    if sum(choice is not None for choice in (script, replay, model, upstream)) > 1:
        named = "--script, --replay, --model, --upstream"
        raise click.UsageError(f"Only one of {named} may be given.")
    try:
        options = CiOptions(
            script=script,
            replay=replay,
            speed=speed_of(speed),
            model=model,
            upstream=upstream,
            expected=frozenset(expected),
            **rest,
        )
        with faults_reported():
            sys.exit(run_ci(options))
    except (ScriptError, CassetteError, NotFoundError, ValueError) as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(USAGE_ERROR)
