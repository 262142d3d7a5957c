"""`slotgate bench` against a gateway in front of a scripted llama-server and a real one."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import orjson
import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.fixtures import RunLlama
from tests.support.gateway import CHAT, running_gateway, settings_for
from tests.support.llama import RealLlama
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, STOP, H, T, chunked
from tests.support.script import Fin, Script, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TENANTS = [{"name": "a", "key_hashes": [hash_key("sg-a")]}]
ANSWER: Script = [Write(H + chunked(T("a"), T("b"), STOP, DONE) + END), Fin()]


async def bench(url: str, *options: str, key: str = "sg-a") -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "slotgate", "bench", "--url", url, *options),
        env={**os.environ, "SLOTGATE_KEY": key, "XDG_STATE_HOME": os.devnull},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_bench_sends_the_stated_number_of_requests_and_streams() -> None:
    fu = ScriptedUpstream(scripts={CHAT: ANSWER}, llama=LlamaLike(8))
    async with fu, running_gateway(settings_for(fu.url, tenant=TENANTS)) as gateway:
        code, out, _ = await bench(gateway.url, "--requests", "20", "--streams", "4", "--json")
        said = orjson.loads(out)
        assert (code, said["requests"], said["ok"], said["failures"]) == (0, 20, 20, {})
        assert len(fu.generations) == 20
        assert said["first_token_ms"]["p50"] > 0
        assert said["queue_ms"] is not None


async def test_a_refusal_is_reported_and_sets_the_exit_code() -> None:
    fu = ScriptedUpstream(scripts={CHAT: ANSWER})
    async with fu, running_gateway(settings_for(fu.url, tenant=TENANTS)) as gateway:
        code, out, _ = await bench(gateway.url, "--requests", "2", key="sg-other")
    assert code == 1
    assert "0 of 2 answers" in out
    assert "failed: 2 × invalid_api_key" in out


async def test_a_missing_gateway_is_reported() -> None:
    code, out, _ = await bench("http://127.0.0.1:1", "--requests", "1")
    assert code == 1
    assert "failed: 1 × not reached" in out


async def test_an_unusable_url_is_a_usage_error() -> None:
    code, _, err = await bench("ftp://127.0.0.1:8080")
    assert code == 2
    assert "--url" in err


@pytest.mark.real
async def test_a_real_llama_server_s_tokens_are_counted(run_llama: RunLlama, tiny_model: Path) -> None:
    llama = run_llama(RealLlama(tiny_model, slots=2))
    async with running_gateway(settings_for(llama.url, tenant=TENANTS)) as gateway:
        options = ("--requests", "4", "--streams", "4", "--max-tokens", "10")
        code, out, _ = await bench(gateway.url, *options, "--json")
    said = orjson.loads(out)
    assert (code, said["ok"], said["tokens"]) == (0, 4, 40)
