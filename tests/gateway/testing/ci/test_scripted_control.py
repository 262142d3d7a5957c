"""A reset of the scripted llama-server succeeds, or changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from slotgate.gateway.testing.ci.scripted_control import ScriptedControl
from slotgate.gateway.testing.fake import scene_of
from tests.gateway.testing.ci.test_recording import cassette

__all__ = ["cassette"]
pytestmark = pytest.mark.anyio


async def test_a_failed_reset_is_undone(cassette: Path) -> None:
    played: list[str] = []
    refuses = False

    async def on_reset(_: dict[str, Any]) -> None:
        if actions.recording is not None:
            played.append(actions.recording.backend["url"])
        if refuses:
            raise ValueError("these settings cannot be")

    actions = ScriptedControl(scene_of({"server": {"model": "m"}}), on_reset)
    await actions.server.listen()
    try:
        refuses = True
        before, cued = actions.server, actions.server.llama.choose_token_source
        with pytest.raises(ValueError, match="cannot be"):
            await actions.reset({"cassette": str(cassette), "settings": {"x": 1}})
        assert (actions.server, actions.recording) == (before, None)
        assert actions.server.llama.choose_token_source == actions._cued == cued
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{before.url}/health")).status_code == 200
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{played[0]}/health")
        refuses = False
        await actions.reset({"cassette": str(cassette)})
        assert actions.server is not before
        assert actions.recording is not None
    finally:
        await actions.close()
