"""`slotgate keys`: make keys."""

from __future__ import annotations

import click

__all__ = ["keys"]

OPERATOR_LINES = """\
[server]
operator_key_hashes = ["{hash}"]"""
TENANT_LINES = """\
[[tenant]]
name = "team-a"
key_hashes = ["{hash}"]"""


@click.group()
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
