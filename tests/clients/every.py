"""All clients, for tests of each of them."""

from __future__ import annotations

import pytest

from tests.clients import anthropic_python, curl, langchain_python, node_js, openai_python

CLIENTS = (
    *openai_python.CLIENTS,
    *anthropic_python.CLIENTS,
    *langchain_python.CLIENTS,
    *node_js.CLIENTS,
    *curl.CLIENTS,
)
WITH_TOOLS = tuple(c for c in CLIENTS if c.path != "/v1/completions" and not c.name.startswith("curl"))
"""The clients that assemble tool calls. curl does not, because it only shows chunks."""

every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
every_client_with_tools = pytest.mark.parametrize("client", WITH_TOOLS, ids=lambda client: client.name)
