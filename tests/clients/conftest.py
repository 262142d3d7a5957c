"""Checks for the programs and packages outside Python that some clients need."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.clients.driven import DrivenClient
from tests.clients.node_js import HOME
from tests.support.fixtures import quick_probes

__all__ = ["node_clients", "quick_probes", "what_the_client_needs"]

NODE = 20
"""The oldest version of Node that the packages support."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start a client in a process of its own."""
    for item in items:
        client = client_of(item)
        if client is not None and (client.needs_node or client.name.startswith("curl")):
            item.add_marker(pytest.mark.slow)


def client_of(item: pytest.Item) -> DrivenClient | None:
    """The client that a test is parametrized with."""
    client = getattr(getattr(item, "callspec", None), "params", {}).get("client")
    return client if isinstance(client, DrivenClient) else None


@pytest.fixture(scope="session")
def node_clients() -> None:
    """Skip the test if the Node clients cannot run. `make install` installs their packages."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    version = subprocess.run(("node", "--version"), capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < NODE:
        pytest.skip(f"node {version} is too old, the clients need {NODE}")
    wanted = json.loads((HOME / "package.json").read_text())["dependencies"]
    missing = [name for name in wanted if not (HOME / "node_modules" / name / "package.json").exists()]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed; `make install` does it where there is npm")


@pytest.fixture(autouse=True)
def what_the_client_needs(request: pytest.FixtureRequest) -> None:
    client = client_of(request.node)
    if client is None:
        return
    if client.needs_node:
        request.getfixturevalue("node_clients")
    if client.name.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
