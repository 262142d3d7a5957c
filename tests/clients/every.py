"""All clients, for tests that hold for each of them."""

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
"""curl shows chunks as they come; who puts a call together from them is another program."""

every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
every_client_with_tools = pytest.mark.parametrize("client", WITH_TOOLS, ids=lambda client: client.name)
