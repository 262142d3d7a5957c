"""A reset is done whole, or not at all."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from slotgate.gateway.testing.ci.stage import ScriptedStage
from slotgate.gateway.testing.fake import scene_of
from tests.gateway.testing.ci.test_recording import cassette

__all__ = ["cassette"]
pytestmark = pytest.mark.anyio


async def test_what_a_reset_began_is_undone_when_it_fails(cassette: Path) -> None:
    played: list[str] = []
    refuses = False

    async def on_reset(_: dict[str, Any]) -> None:
        if stage.recording is not None:
            played.append(stage.recording.backend["url"])
        if refuses:
            raise ValueError("these settings cannot be")

    stage = ScriptedStage(scene_of({"server": {"model": "m"}}), on_reset)
    await stage.server.listen()
    try:
        refuses = True
        before, cued = stage.server, stage.server.llama.choose_token_source
        with pytest.raises(ValueError, match="cannot be"):
            await stage.reset({"cassette": str(cassette), "settings": {"x": 1}})
        assert (stage.server, stage.recording) == (before, None)
        assert stage.server.llama.choose_token_source == stage._cued == cued
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{before.url}/health")).status_code == 200
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{played[0]}/health")
        refuses = False
        await stage.reset({"cassette": str(cassette)})
        assert stage.server is not before
        assert stage.recording is not None
    finally:
        await stage.close()
