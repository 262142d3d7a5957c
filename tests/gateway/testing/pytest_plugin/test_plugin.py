"""The plugin in separate pytest runs: its fixtures, its start time, and that it leaves nothing running."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.paths import DOCS
from tests.support.processes import children_of, vanishes

pytestmark = pytest.mark.slow

EXAMPLE = DOCS / "examples" / "chat-tests"
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}


def pytest_in(folder: Path, *arguments: str, within: float = 180) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *arguments]
    return subprocess.run(
        command, cwd=folder, env=ENVIRON, capture_output=True, text=True, timeout=within, check=False
    )


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "example"))


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "two workers"])
def test_the_tests_of_the_example_pass(example: Path, workers: tuple[str, ...]) -> None:
    done = pytest_in(example, *workers)
    assert done.returncode == 0, done.stdout + done.stderr
    print(re.findall(r"SKIPPED.*|\d+ passed.*", done.stdout))


def test_a_run_that_uses_no_fixture_imports_nothing_of_slotgate(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\n"
        "def test_plain() -> None:\n"
        "    ours = sorted(name for name in sys.modules if name.partition('.')[0] in "
        "('slotgate', 'gateway', 'admission', 'middleware'))\n"
        "    parents = ['slotgate', 'slotgate.gateway', 'slotgate.gateway.testing']\n"
        "    plugin = 'slotgate.gateway.testing.pytest_plugin'\n"
        "    assert ours == [*parents, plugin, f'{plugin}.fixtures']\n"
    )
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_fixtures_are_ready_soon_and_each_test_has_a_new_server(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "import pytest\n"
        "def test_first(slotgate, scripted_llama, slotgate_process):\n"
        "    print(f'started in {slotgate_process.started_s:.2f} s')\n"
        "    scripted_llama.reply(text='mine')\n"
        "    scripted_llama.lead()\n"
        "@pytest.mark.parametrize('number', range(20))\n"
        "def test_others(slotgate, scripted_llama, number):\n"
        "    assert scripted_llama.requests == []\n"
    )
    done = pytest_in(tmp_path, "-s")
    assert "21 passed" in done.stdout, done.stdout
    print(re.findall(r"started in [\d.]+ s", done.stdout))


def test_a_mistake_in_a_script_fails_the_test_that_uses_it(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def slotgate_script():\n"
        "    return {'server': {'colour': 1}}\n"
        "def test_wrong(slotgate): ...\n"
        "def test_settings(scripted_llama):\n"
        "    with pytest.raises(AssertionError, match='streaming.keepalive'):\n"
        "        scripted_llama.reset({}, {'streaming': {'keepalive': 'x'}})\n"
    )
    done = pytest_in(tmp_path)
    assert "ControlError: server.colour: unknown" in done.stdout, done.stdout


def test_a_pytest_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(
        "import time\ndef test_hangs(slotgate):\n    print('here', flush=True)\n    time.sleep(300)\n"
    )
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", str(tmp_path)]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environ = {**ENVIRON, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, cwd=tmp_path) as run:
        assert run.stdout is not None
        while b"here" not in run.stdout.readline():
            assert run.poll() is None
        children = children_of(run.pid)
        run.send_signal(signal.SIGKILL)
        assert len(children) == 1
    assert vanishes(children[0], 5)
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("pytest-")] == []


def test_a_test_can_wait_for_the_end_of_a_request(tmp_path: Path) -> None:
    began = time.monotonic()
    (tmp_path / "test_waits.py").write_text(
        "import pytest\n"
        "def test_nobody_asks(scripted_llama):\n"
        "    scripted_llama.lead()\n"
        "    with pytest.raises(AssertionError, match='not within 0.2 s'):\n"
        "        scripted_llama.next_generation(within=0.2)\n"
    )
    assert pytest_in(tmp_path).returncode == 0
    assert time.monotonic() - began < 60
