"""The command line. Commands import what they need when they run, so that `--help` and `check` are quick.

Exit codes: 0, 2 for what the user has to correct (every fault on its own line of stderr), and whatever
a server returns.
"""

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
BY = "Any of tenant, key, model, backend, day, outcome; empty for one sum of all."
FOLDER = click.Path(file_okay=False, path_type=Path)
SPEEDS = "As recorded, N times as fast, or without any wait."
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
ABOVE_0 = click.FloatRange(min=0, min_open=True)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)


def _beside(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """For a file that is written at the end: that there is no place for it is said at the beginning."""
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
    """Run the gateway."""
    settings = _loaded(config)
    from slotgate.gateway.app.serve import serve as serve_forever
    from slotgate.gateway.settings import load

    sys.exit(serve_forever(settings, load=lambda: load(config, os.environ)))


@main.command()
@CONFIG
def check(config: Path | None) -> None:
    """Validate a configuration and explain what it means."""
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
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True)
@click.option("--parallel", type=click.IntRange(min=1), metavar="N", help="Slots of llama-server.")
@click.option("--ctx", type=click.IntRange(min=1), metavar="N", help="Context size in tokens.")
@click.option("--llama-server", type=EXISTING_FILE, metavar="PATH", help="The program to start.")
def run(
    *,
    model: Path | None,
    host: str,
    port: int,
    parallel: int | None,
    ctx: int | None,
    llama_server: Path | None,
) -> None:
    """Start llama-server and a gateway in front of it."""
    from slotgate.gateway.tools.run.options import RunOptions
    from slotgate.gateway.tools.run.run import run as run_both

    options = RunOptions(model, host, port, parallel, ctx, llama_server)
    with _faults_reported():
        sys.exit(run_both(options))


@main.command()
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The gateway.")
@click.option("--key-file", type=EXISTING_FILE, metavar="FILE", help="A file with the operator key.")
@click.option("--once", is_flag=True, help="Print one picture and end, as without a terminal.")
def top(*, url: str, key_file: Path | None, once: bool) -> None:
    """Watch slots, queue and requests. The operator key comes from SLOTGATE_OPERATOR_KEY or --key-file."""
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
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The gateway.")
@click.option("--key-file", type=EXISTING_FILE, metavar="FILE", help="A file with a tenant's key.")
@click.option("--streams", type=click.IntRange(min=1), default=8, show_default=True, help="At a time.")
@click.option("--requests", type=click.IntRange(min=1), metavar="N", help="In all. Default: by --seconds.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True)
@click.option("--model", metavar="NAME", help="Needed where several are served.")
@click.option("--prompt", default="Tell a story.", show_default=True)
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="For a program.")
def bench(*, url: str, key_file: Path | None, as_json: bool, **rest: Any) -> None:  # noqa: ANN401
    """Load a gateway that runs and print its figures. The key comes from SLOTGATE_KEY or --key-file.

    Exit code 1 if a request failed.
    """
    import orjson

    from slotgate.gateway.tools.bench import BenchOptions, run_bench
    from slotgate.gateway.tools.client_key import CLIENT, NoKeyError, with_scheme

    url = with_scheme(url)
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter("it begins with http:// or https://", param_hint="--url")
    try:
        key = CLIENT.find(url, key_file, os.environ, lambda: "")
    except NoKeyError as missing:
        if key_file is not None or os.environ.get(CLIENT.variable):
            raise click.UsageError(str(missing)) from missing
        key = None  # a gateway without tenants wants none
    figures = run_bench(BenchOptions(url=url, key=key, **rest))
    click.echo(orjson.dumps(figures.as_json()).decode() if as_json else figures.as_text(), nl=as_json)
    sys.exit(0 if figures.ok == figures.requests else 1)


@main.command()
@click.option("--upstream", required=True, metavar="URL", help="The server to record: http://host:port.")
@click.option("--to", "folder", required=True, type=FOLDER, metavar="FOLDER", help="Where recordings go.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8090, show_default=True)
@click.option("--api-key-env", metavar="NAME", help="The variable with a key for the upstream.")
def record(*, upstream: str, folder: Path, host: str, port: int, api_key_env: str | None) -> None:
    """Pass requests on and keep the answers, for `replay`."""
    from slotgate.gateway.testing.cassette.listening import record as record_until_stopped

    api_key = None if api_key_env is None else os.environ.get(api_key_env)
    if api_key_env is not None and not api_key:
        raise click.UsageError(f"The variable {api_key_env} of --api-key-env is not set.")
    sys.exit(record_until_stopped(upstream, folder, host, port, api_key))


@main.command()
@click.argument("folder", type=FOLDER)
@click.option("--speed", default="recorded", show_default=True, metavar="recorded|N|max", help=SPEEDS)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8091, show_default=True)
def replay(*, folder: Path, speed: str, host: str, port: int) -> None:
    """Answer requests as they were answered when they were recorded."""
    from slotgate.gateway.testing.cassette.listening import replay as replay_until_stopped
    from slotgate.gateway.testing.cassette.player import speed_of

    try:
        sys.exit(replay_until_stopped(folder, host, port, speed_of(speed)))
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--speed") from wrong


@main.command()
@CONFIG
@click.option("--by", default="tenant,model,day", show_default=True, metavar="COLUMNS", help=BY)
@click.option("--from", "first", default="", metavar="YYYY-MM-DD", help="The first UTC day.")
@click.option("--to", "last", default="", metavar="YYYY-MM-DD", help="The last UTC day.")
@click.option("--csv", "form", flag_value="csv", help="For a spreadsheet.")
@click.option("--json", "form", flag_value="json", help="For a program.")
def usage(*, config: Path | None, by: str, first: str, last: str, form: str | None) -> None:
    """Print what requests used. Without a configuration: what those of `slotgate run` did."""
    from slotgate.gateway.usage import Question, StoreError, store_of
    from slotgate.gateway.usage.table import as_csv, as_json, as_table

    forms = {"csv": as_csv, "json": as_json, None: as_table}
    store = store_of(_usage_settings(config))
    if store is None:
        raise click.UsageError('Nothing is recorded: usage.store is "none".')
    try:
        question = Question.asked(by, first, last, most=sys.maxsize)
        totals = store.totals(question)
    except (ValueError, StoreError) as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(USAGE_ERROR)
    click.echo(forms[form](question, totals), nl=False)


@main.command()
@click.option("--script", type=EXISTING_FILE, metavar="FILE", help="What it says and does, a TOML file.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free one.")
@click.option(
    "--ready", type=NEW_FILE, callback=_beside, metavar="FILE", help="Gets the URL once it listens."
)
@click.option("--alias", metavar="NAME", help="Its model's name, as llama-server's --alias.")
@click.option("-np", "--parallel", "slots", type=click.IntRange(min=1), metavar="N", help="Slots.")
@click.option("--seed", type=int, metavar="N", help="The same seed says the same.")
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
    """Run a scripted llama-server, for tests without a GPU."""
    from slotgate.gateway.testing.fake import ScriptError
    from slotgate.gateway.testing.fake_program import FakeOptions, run_fake

    options = FakeOptions(script, host, port, ready, alias, slots, seed)
    try:
        sys.exit(run_fake(options, os.environ))
    except ScriptError as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(USAGE_ERROR)


@main.command()
@click.option("--script", type=EXISTING_FILE, metavar="FILE", help="For the scripted llama-server.")
@click.option("--replay", type=FOLDER, metavar="FOLDER", help="A recording instead.")
@click.option("--speed", default="max", show_default=True, metavar="recorded|N|max", help=SPEEDS)
@click.option("--model", type=EXISTING_FILE, metavar="GGUF", help="A real llama-server with it instead.")
@click.option("--upstream", metavar="URL", help="A llama-server that runs already instead.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free one.")
@click.option("--allow-origin", "origins", multiple=True, metavar="ORIGIN", help="A web page that may call.")
@click.option("--ready", type=NEW_FILE, callback=_beside, metavar="FILE", help="Gets URL and key as JSON.")
@click.option("--junit", type=NEW_FILE, callback=_beside, metavar="FILE", help="Gets what was asked, as XML.")
@click.option("--start-s", type=ABOVE_0, default=120.0, show_default=True, help="To be ready within.")
@click.option("--max-s", type=ABOVE_0, default=3600.0, show_default=True, help="To end after.")
@click.option("--expect", "expected", multiple=True, metavar="CODE", help="An error that may happen.")
@click.option("--key", metavar="KEY", help="Default: a new one.", envvar="SLOTGATE_CI_KEY", show_envvar=True)
@click.option("--control", is_flag=True, hidden=True)
@click.option("--with-parent", is_flag=True, help="End when the process that started this does.")
@click.option("--verbose", is_flag=True, help="Log every request.")
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
    """Run a command beside a gateway with a stand-in.

    The command sees SLOTGATE_URL and SLOTGATE_KEY (and the OpenAI and Anthropic clients' own variables).
    The exit code is the command's, or 1 if a request failed unexpectedly.
    """
    from slotgate.gateway.testing.cassette import CassetteError
    from slotgate.gateway.testing.cassette.player import speed_of
    from slotgate.gateway.testing.ci.options import CiOptions
    from slotgate.gateway.testing.ci.run import run_ci
    from slotgate.gateway.testing.fake import ScriptError
    from slotgate.gateway.tools.run.find import NotFoundError

    if sum(choice is not None for choice in (script, replay, model, upstream)) > 1:
        named = "--script, --replay, --model, --upstream"
        raise click.UsageError(f"Only one of {named} can stand behind the gateway.")
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
    """Make keys."""


@keys.command()
@click.option("--operator", is_flag=True, help="A key for /metrics and /admin.")
def new(operator: bool) -> None:
    """Print a new key, its hash, and what to write into the configuration."""
    from slotgate.gateway.auth.keys import hash_key, new_key

    key = new_key()
    lines = OPERATOR_LINES if operator else TENANT_LINES
    click.echo(f"key:  {key}\nhash: {hash_key(key)}\n\n# The key is kept nowhere. In the configuration:")
    click.echo(lines.format(hash=hash_key(key)))


OPERATOR_LINES = """\
[server]
operator_key_hashes = ["{hash}"]"""

TENANT_LINES = """\
[[tenant]]
name = "team-a"
key_hashes = ["{hash}"]"""


def _loaded(config: Path | None) -> "Settings":
    from slotgate.gateway.settings import load

    if config is None:
        raise click.UsageError("No configuration: give --config FILE or set SLOTGATE_CONFIG.")
    with _faults_reported():
        return load(config, os.environ)


def _usage_settings(config: Path | None) -> "UsageSettings":
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
