"""`slotgate top`, `bench` and `usage`: look at a gateway that runs, and at what it served."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slotgate.gateway.cli.options import (
    ABOVE_0,
    AT_LEAST_1,
    CONFIG,
    EXISTING_FILE,
    URL,
    USAGE_ERROR,
    loaded,
)

if TYPE_CHECKING:
    from slotgate.gateway.settings import UsageSettings


__all__ = ["bench", "top", "usage"]

BY = "Group by these columns: any of tenant, key, model, backend, day, outcome. Empty: one total."
OPERATOR_KEY_FILE = "A file with the operator key. Default: $SLOTGATE_OPERATOR_KEY, else asked for."
TENANT_KEY_FILE = "A file with a tenant's key. Default: $SLOTGATE_KEY, else no key."
BENCH_SECONDS = "Start requests for this many seconds, unless --requests is given."


@click.command()
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


@click.command()
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


@click.command()
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
    from slotgate.gateway.usage import StoreError, UsageQuery, store_of
    from slotgate.gateway.usage.table import as_csv, as_json, as_table

    forms = {"csv": as_csv, "json": as_json, None: as_table}
    store = store_of(_usage_settings(config))
    if store is None:
        raise click.UsageError('Usage is not recorded: usage.store is "none".')
    try:
        question = UsageQuery.parse(by, first, last, most=sys.maxsize)
        totals = store.totals(question)
    except (ValueError, StoreError) as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(USAGE_ERROR)
    click.echo(forms[form](question, totals), nl=False)


def _usage_settings(config: Path | None) -> UsageSettings:
    if config is not None:
        return loaded(config).usage
    from slotgate.gateway.tools.run.kept_keys import state_dir
    from slotgate.gateway.tools.run.plan import usage_settings

    return usage_settings(state_dir(os.environ))
