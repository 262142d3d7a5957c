"""`slotgate ci` as a process: its command, its exit code, and that it leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from tests.support.processes import children_of, vanishes

pytestmark = pytest.mark.slow

ASK = """
import json, os, sys, urllib.error, urllib.request
def ask(model, stream=False):
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": model, "stream": stream, "max_tokens": 50, "messages": messages}
    headers = {"Authorization": "Bearer " + os.environ["SLOTGATE_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    try:
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
"""


def ci(*arguments: str, command: str | None = None, within: float = 60, **environ: str) -> Any:  # noqa: ANN401
    """Run `slotgate ci` to its end, with a command in Python."""
    words = [sys.executable, "-m", "slotgate", "ci", *arguments]
    words += ["--", sys.executable, "-c", ASK + command] if command is not None else []
    environment = {**os.environ, **environ}
    return subprocess.run(words, capture_output=True, text=True, timeout=within, env=environment, check=False)


def test_the_command_reaches_the_gateway_and_its_exit_code_counts() -> None:
    done = ci(command="status, said = ask('fake'); print(said); sys.exit(7 if status == 200 else 1)")
    assert done.returncode == 7
    assert json.loads(done.stdout)["object"] == "chat.completion"
    assert "1 requests, 0 failed unexpectedly" in done.stderr


def test_a_request_that_fails_unexpectedly_fails_the_run_and_is_named(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    done = ci("--junit", str(junit), command="ask('no-such-model'); ask('fake')")
    assert done.returncode == 1
    refused = "/v1/chat/completions: 404 model_not_found, the model 'no-such-model' does not exist here"
    assert refused in done.stderr
    suite = Xml.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")


def test_scripted_failures_do_not_fail_the_run(tmp_path: Path) -> None:
    faults = ["error", "error-frame", "truncate", "rst", "no-done", "loading", "kv-exhausted"]
    script = tmp_path / "script.toml"
    replies = [f'[[reply]]\nmodel = "{fault}"\nfault = "{fault}"\n' for fault in faults]
    script.write_text("[server]\nslots = 1\n" + "".join(replies))
    done = ci("--script", str(script), command=f"for fault in {faults}: print(ask(fault, True)[0])")
    assert (done.returncode, done.stderr.count("failed unexpectedly")) == (0, 1), done.stderr
    assert f"{len(faults)} requests, 0 failed" in done.stderr
    assert "500" in done.stdout


def test_a_request_that_a_strict_script_does_not_match_fails_the_run(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text('[server]\nstrict = true\n[[reply]]\ncontains = "known"\ntext = "yes"\n')
    done = ci("--script", str(script), command="ask('fake')")
    assert (done.returncode, "no reply or recording matched" in done.stderr) == (1, True)


def test_an_expected_error_code_does_not_fail_the_run() -> None:
    assert ci("--expect", "model_not_found", command="ask('no-such-model')").returncode == 0


def test_settings_come_from_the_environment_too() -> None:
    keep_alive = "print(ask('fake-slow-prompt', True)[1])"
    done = ci(
        command=keep_alive,
        SLOTGATE_STREAMING__KEEPALIVE_INTERVAL_S="1",
        SLOTGATE_STREAMING__KEEPALIVE="comment",
    )
    assert done.stdout.count(": keep-alive") >= 2, done


def test_mistakes_of_the_user_are_reported_with_exit_code_2(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text("[server]\nslots = 0\ncolour = 1\n")
    done = ci("--script", str(script), command="pass")
    assert (done.returncode, done.stderr.count("server.")) == (2, 2)
    done = ci("--script", str(script), "--upstream", "http://127.0.0.1:1", command="pass")
    assert (done.returncode, "Only one of" in done.stderr) == (2, True)


def test_a_server_that_never_gets_ready_is_named_after_the_limit() -> None:
    done = ci("--upstream", "http://127.0.0.1:9", "--start-s", "0.5", command="pass", within=20)
    assert (done.returncode, "upstream at http://127.0.0.1:9: " in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("option", ["--junit", "--ready"])
def test_a_file_that_cannot_be_written_is_named_before_anything_runs(option: str, tmp_path: Path) -> None:
    path = tmp_path / "no-such-folder" / "file"
    done = ci(option, str(path), command="print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"'{path}': there is no folder" in done.stderr


def test_the_run_ends_after_max_s(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    done = ci("--max-s", "1.5", "--ready", str(ready), command="import time; time.sleep(60)", within=20)
    assert (done.returncode, "--max-s" in done.stderr) == (124, True)
    assert list(tmp_path.iterdir()) == []


def soon(look: Callable[[], list[int]]) -> list[int]:
    """Wait until `look` returns something, and return it."""
    end = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


class Running:
    """A `slotgate ci` that is ready and waits for a signal."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.ready = folder / "ready.json"
        command = [sys.executable, "-m", "slotgate", "ci", "--ready", str(self.ready), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while not self.ready.exists():
            assert self.process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        self.facts = json.loads(self.ready.read_text())

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def test_a_command_that_does_not_exist_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slotgate", "ci", "--", "no-such-program"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, "cannot start no-such-program" in done.stderr) == (127, True)


def test_the_ready_file_has_the_url_and_is_removed_at_the_end(tmp_path: Path) -> None:
    with Running(tmp_path) as running:
        assert running.facts["url"].startswith("http://127.0.0.1:")
        assert running.facts["key"].startswith("sg-")
        assert running.facts["models"][0] == "fake"
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(10) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_the_command_and_its_children_end_with_the_run(tmp_path: Path, sign: signal.Signals) -> None:
    with Running(
        tmp_path, "--", "sh", "-c", "trap '' TERM; setsid sleep 299 & sleep 300 & sleep 301"
    ) as running:
        [guard] = soon(lambda: children_of(running.process.pid))
        [command] = soon(lambda: children_of(guard))
        grandchildren = soon(lambda: found if len(found := children_of(command)) == 3 else [])
        running.process.send_signal(sign)
        running.process.wait(10)
        assert vanishes(command, 5)
        assert all(vanishes(pid, 5) for pid in grandchildren)


def test_children_in_sessions_of_their_own_end_with_the_command() -> None:
    done = ci(
        command="import subprocess\n"
        "nowhere = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}\n"
        "print(subprocess.Popen(['sleep', '298'], start_new_session=True, **nowhere).pid)"
    )
    assert done.returncode == 0
    assert vanishes(int(done.stdout), 5)


def test_the_option_with_parent_ends_the_run_when_the_parent_dies(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "slotgate", "ci", "--with-parent", "--ready", {str(ready)!r}])
print(child.pid, flush=True)
time.sleep(300)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        end = time.monotonic() + 30
        while not ready.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        parent.kill()
    assert vanishes(pid, 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_the_stand_in_can_be_a_real_model(tiny_model: Path) -> None:
    done = ci("--model", str(tiny_model), command="print(ask('tiny')[1])")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_the_stand_in_can_be_a_running_server(tmp_path: Path) -> None:
    ready = tmp_path / "fake.json"
    command = [sys.executable, "-m", "slotgate", "fake", "--ready", str(ready)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as fake:
        end = time.monotonic() + 30
        while not ready.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        url = json.loads(ready.read_text())["url"]
        done = ci("--upstream", url, command="print(ask('fake')[0])")
        assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr
        fake.terminate()
        assert fake.wait(10) == 0
