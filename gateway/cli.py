"""The command line.

Each command imports the modules that it needs when it runs, so that `--help` and `check` start quickly.

Exit codes: 0 for success, 2 for faults that the user has to correct (each on its own line of stderr), 1 where
the help of a command says so, and the exit code of the server for commands that run one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from slotgate.gateway.settings import Settings, UsageSettings

USAGE_ERROR = 2

CONFIG = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="SLOTGATE_CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="The configuration, a TOML file.",
)
BY = "Group by these columns: any of tenant, key, model, backend, day, outcome. Empty: one total."
URL = "URL of the gateway."
HOST = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
FREE_PORT = click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on. Default: any free port."
)
LISTEN_PORT = "Port to listen on."
LISTEN_ANY_PORT = "Port to listen on. 0 takes any free port."
FOLDER = click.Path(file_okay=False, path_type=Path)
SPEEDS = "Play answers at the recorded speed, N times as fast, or without pauses (max)."
PARALLEL = "Number of slots (llama-server --parallel). Default: llama-server's own."
CONTEXT = "Context size in tokens (llama-server --ctx-size). Default: llama-server's own."
SERVER_PROGRAM = (
    "The llama-server to start. Default: $LLAMA_SERVER, else from $PATH, else the Python package."
)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OPERATOR_KEY_FILE = "A file with the operator key. Default: $SLOTGATE_OPERATOR_KEY, else asked for."
TENANT_KEY_FILE = "A file with a tenant's key. Default: $SLOTGATE_KEY, else no key."
API_KEY_ENV = "Environment variable with the API key of the server. Default: client keys are forwarded."
BENCH_SECONDS = "Start requests for this many seconds, unless --requests is given."
SCRIPT = "What the scripted model says, a TOML file. Default: built-in answers."
AT_LEAST_1 = click.IntRange(min=1)
ABOVE_0 = click.FloatRange(min=0, min_open=True)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)


def _in_a_folder(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Check that the folder of an output file exists: the file itself is written only at the end."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"'{path}': there is no folder {path.parent}.")
    return path


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="slotgate", prog_name="slotgate")
def main() -> None:
    """A streaming gateway for llama-server."""


@main.command()
@CONFIG
def serve(config: Path | None) -> None:
    """Start the gateway with a configuration.

    SIGHUP reloads the configuration. SIGTERM or SIGINT lets running streams finish (server.shutdown_grace_s)
    and then ends the process; a second signal ends it at once.
    """
    settings = _loaded(config)
    from slotgate.gateway.app.serve import serve as serve_forever
    from slotgate.gateway.settings import load

    sys.exit(serve_forever(settings, load=lambda: load(config, os.environ)))


@main.command()
@CONFIG
def check(config: Path | None) -> None:
    """Validate a configuration and explain what it means.

    Exit code 2 if it has faults; each is printed on its own line.
    """
    settings = _loaded(config)
    from slotgate.gateway.settings import explain
    from slotgate.gateway.usage import store_of

    store = store_of(settings.usage)
    if store is not None and (fault := store.fault()):
        click.echo(f"usage.store: {fault}", err=True)
        sys.exit(USAGE_ERROR)
    click.echo(explain(settings), nl=False)


@main.command()
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
    from slotgate.gateway.tools.run.options import RunOptions
    from slotgate.gateway.tools.run.run import run as run_both

    options = RunOptions(model, host, port, parallel, ctx, llama_server)
    with _faults_reported():
        sys.exit(run_both(options))


@main.command()
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help=URL)
@click.option("--key-file", type=EXISTING_FILE, metavar="FILE", help=OPERATOR_KEY_FILE)
@click.option(
    "--once", is_flag=True, help="Print one snapshot and exit. Default if stdout is not a terminal."
)
def top(*, url: str, key_file: Path | None, once: bool) -> None:
    """Watch slots, queue and requests of a running gateway.

    It needs the operator key. On the machine where `slotgate run` is running, that key is found by itself.
    """
    from slotgate.gateway.tools.client_key import OPERATOR, NoKeyError, with_scheme
    from slotgate.gateway.tools.top.watching import watch

    def ask() -> str:
        return str(click.prompt("Operator key", hide_input=True, err=True))

    url = with_scheme(url)
    try:
        key = OPERATOR.find(url, key_file, os.environ, ask if sys.stdin.isatty() else None)
    except NoKeyError as missing:
        raise click.UsageError(str(missing)) from missing
    sys.exit(watch(url, key, once=once))


@main.command()
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help=URL)
@click.option("--key-file", type=EXISTING_FILE, metavar="FILE", help=TENANT_KEY_FILE)
@click.option("--streams", type=AT_LEAST_1, default=8, show_default=True, help="Concurrent streams.")
@click.option(
    "--requests", type=AT_LEAST_1, metavar="N", help="Total number of requests. Default: see --seconds."
)
@click.option("--seconds", type=ABOVE_0, default=10.0, show_default=True, help=BENCH_SECONDS)
@click.option("--model", metavar="NAME", help="Model to ask for. Default: the only one that is served.")
@click.option("--prompt", default="Tell a story.", show_default=True, help="Prompt of every request.")
@click.option(
    "--max-tokens", type=AT_LEAST_1, default=64, show_default=True, help="Longest answer in tokens."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON. Default: as text.")
def bench(*, url: str, key_file: Path | None, as_json: bool, **rest: Any) -> None:  # noqa: ANN401
    """Put load on a running gateway and print what its clients measured.

    On the machine where `slotgate run` is running, its key is found by itself. Exit code 1 if a request
    failed.
    """
    import orjson

    from slotgate.gateway.tools.bench import BenchOptions, run_bench
    from slotgate.gateway.tools.client_key import CLIENT, NoKeyError, with_scheme

    url = with_scheme(url)
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter("must begin with http:// or https://", param_hint="--url")
    try:
        key = CLIENT.find(url, key_file, os.environ, lambda: "")
    except NoKeyError as missing:
        if key_file is not None or os.environ.get(CLIENT.variable):
            raise click.UsageError(str(missing)) from missing
        key = None  # a gateway without tenants needs no key
    figures = run_bench(BenchOptions(url=url, key=key, **rest))
    click.echo(orjson.dumps(figures.as_json()).decode() if as_json else figures.as_text(), nl=as_json)
    sys.exit(0 if figures.ok == figures.requests else 1)


@main.command()
@click.option("--upstream", required=True, metavar="URL", help="The server to record, as http://host:port.")
@click.option("--to", "folder", required=True, type=FOLDER, metavar="FOLDER", help="The folder to write to.")
@HOST
@click.option("--port", type=click.IntRange(0, 65535), default=8090, show_default=True, help=LISTEN_ANY_PORT)
@click.option("--api-key-env", metavar="NAME", help=API_KEY_ENV)
def record(*, upstream: str, folder: Path, host: str, port: int, api_key_env: str | None) -> None:
    """Forward requests to a server and record its answers for `slotgate replay`."""
    from slotgate.gateway.testing.cassette.listening import record as record_until_stopped

    api_key = None if api_key_env is None else os.environ.get(api_key_env)
    if api_key_env is not None and not api_key:
        raise click.UsageError(f"The environment variable {api_key_env} (--api-key-env) is not set.")
    sys.exit(record_until_stopped(upstream, folder, host, port, api_key))


@main.command()
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


@main.command()
@CONFIG
@click.option("--by", default="tenant,model,day", show_default=True, metavar="COLUMNS", help=BY)
@click.option(
    "--from", "first", default="", metavar="YYYY-MM-DD", help="First UTC day. Default: the oldest record."
)
@click.option(
    "--to", "last", default="", metavar="YYYY-MM-DD", help="Last UTC day. Default: the newest record."
)
@click.option("--csv", "form", flag_value="csv", help="Print CSV. Default: a table.")
@click.option("--json", "form", flag_value="json", help="Print JSON. Default: a table.")
def usage(*, config: Path | None, by: str, first: str, last: str, form: str | None) -> None:
    """Print the usage records, summed up.

    Without a configuration it reads the records of `slotgate run`.
    """
    from slotgate.gateway.usage import Question, StoreError, store_of
    from slotgate.gateway.usage.table import as_csv, as_json, as_table

    forms = {"csv": as_csv, "json": as_json, None: as_table}
    store = store_of(_usage_settings(config))
    if store is None:
        raise click.UsageError('Usage is not recorded: usage.store is "none".')
    try:
        question = Question.asked(by, first, last, most=sys.maxsize)
        totals = store.totals(question)
    except (ValueError, StoreError) as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(USAGE_ERROR)
    click.echo(forms[form](question, totals), nl=False)


@main.command()
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


@main.command()
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
        raise click.UsageError(f"Give only one of {named}.")
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
        with _faults_reported():
            sys.exit(run_ci(options))
    except (ScriptError, CassetteError, NotFoundError, ValueError) as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(USAGE_ERROR)


@main.group()
def keys() -> None:
    """Make keys for tenants and operators."""


@keys.command()
@click.option(
    "--operator", is_flag=True, help="Make an operator key, for /metrics and /admin. Default: a tenant's key."
)
def new(operator: bool) -> None:
    """Print a new key, its hash, and what to write into the configuration."""
    from slotgate.gateway.auth.keys import hash_key, new_key

    key = new_key()
    lines = OPERATOR_LINES if operator else TENANT_LINES
    click.echo(f"key:  {key}\nhash: {hash_key(key)}\n\n# The key is stored nowhere. Configure its hash:")
    click.echo(lines.format(hash=hash_key(key)))


OPERATOR_LINES = """\
[server]
operator_key_hashes = ["{hash}"]"""

TENANT_LINES = """\
[[tenant]]
name = "team-a"
key_hashes = ["{hash}"]"""


def _loaded(config: Path | None) -> Settings:
    from slotgate.gateway.settings import load

    if config is None:
        raise click.UsageError("No configuration: give --config FILE or set SLOTGATE_CONFIG.")
    with _faults_reported():
        return load(config, os.environ)


def _usage_settings(config: Path | None) -> UsageSettings:
    if config is not None:
        return _loaded(config).usage
    from slotgate.gateway.tools.run.kept_keys import state_dir
    from slotgate.gateway.tools.run.plan import usage_settings

    return usage_settings(state_dir(os.environ))


@contextmanager
def _faults_reported() -> Iterator[None]:
    from slotgate.gateway.settings import SettingsError
    from slotgate.gateway.tools.run.kept_keys import KeysError

    try:
        yield
    except (SettingsError, KeysError) as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(USAGE_ERROR)
