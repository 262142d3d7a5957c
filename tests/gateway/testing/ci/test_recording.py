"""A recording behind the gateway of a CI run, and of the pytest plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotgate.gateway.testing.cassette import Recorder, listening
from slotgate.gateway.testing.fake import FakeServer, scene_of
from tests.gateway.testing.ci.test_run import ci
from tests.gateway.testing.pytest_plugin.test_plugin import pytest_in
from tests.support.gateway import ask, running_gateway, settings_for

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SCENE = {
    "server": {"model": "m"},
    "default": {"text": "As recorded."},
    "reply": [{"contains": "fail", "fault": {"kind": "error", "message": "recorded failure"}}],
}


@pytest.fixture
async def cassette(tmp_path: Path) -> Path:
    """Record the exchanges of a gateway with a scripted llama-server."""
    folder = tmp_path / "cassette"
    async with FakeServer(scene_of(SCENE)) as fake, Recorder(fake.url, folder) as recorder:
        async with listening(recorder) as url, running_gateway(settings_for(url)) as gateway:
            for said in ("hi", "fail"):
                messages = [{"role": "user", "content": said}]
                await ask(gateway.url, model="m", stream=False, max_tokens=50, messages=messages)
    return folder


async def test_recorded_failures_do_not_fail_the_run(cassette: Path) -> None:
    done = ci("--replay", str(cassette), command="print(ask('m')[1])")
    assert (done.returncode, "As recorded." in done.stdout) == (0, True), done.stderr


async def test_a_request_without_a_recording_fails_the_run_and_shows_the_differences(cassette: Path) -> None:
    done = ci("--replay", str(cassette), command="print(ask('m', True)[0])")
    assert (done.returncode, "stream" in done.stderr) == (1, True), done.stderr
    assert "there is no recording of POST /v1/chat/completions" in done.stderr


async def test_a_folder_without_recordings_exits_2(tmp_path: Path) -> None:
    done = ci("--replay", str(tmp_path), command="pass")
    assert (done.returncode, "there are no recordings" in done.stderr) == (2, True)


async def test_the_plugin_fails_a_test_whose_request_has_no_recording(cassette: Path, tmp_path: Path) -> None:
    (tmp_path / "test_recorded.py").write_text(
        "import json, urllib.request\n"
        "from pathlib import Path\n"
        "def ask(slotgate, said):\n"
        "    body = {'model': 'm', 'stream': False, 'max_tokens': 50,\n"
        "            'messages': [{'role': 'user', 'content': said}]}\n"
        "    url = slotgate.url + '/v1/chat/completions'\n"
        "    headers = {**slotgate.headers, 'Content-Type': 'application/json'}\n"
        "    request = urllib.request.Request(url, json.dumps(body).encode(), headers)\n"
        "    with urllib.request.urlopen(request) as answer:\n"
        "        return json.load(answer)['choices'][0]['message']['content']\n"
        "def test_recorded(slotgate_cassette):\n"
        "    assert ask(slotgate_cassette.play(Path('cassette')), 'hi') == 'As recorded.'\n"
        "def test_scripted_again(slotgate, scripted_llama):\n"
        "    scripted_llama.reply(model='m', text='not any more')\n"
        "    assert scripted_llama.requests == []\n"
        "def test_more(slotgate_cassette):\n"
        "    try:\n"
        "        ask(slotgate_cassette.play('cassette'), 'ho')\n"
        "    except urllib.error.HTTPError as error:\n"
        "        error.close()\n"
    )
    done = pytest_in(tmp_path, "-q")
    assert "3 passed, 1 error" in done.stdout, done.stdout
    assert "there is no recording of" in done.stdout
