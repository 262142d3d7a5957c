"""The command line, as users and scripts call it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.cli import main
from slotgate.gateway.settings import Settings, SettingsError, SettingsFault
from slotgate.gateway.tools.run.kept_keys import KeysError
from slotgate.gateway.tools.run.plan import RunOptions
from slotgate.gateway.usage.sqlite import SqliteStore
from tests.support.paths import ROOT

VALID = '[[backend]]\nname = "gpu0"\nurl = "http://127.0.0.1:8081"\n'
INVALID = '[server]\nport = -1\n[timeouts]\nidle_s = "long"\n' + VALID


def slotgate(*arguments: str, environ: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, arguments, env={"SLOTGATE_CONFIG": "", **(environ or {})})


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], str]:
    def written(text: str) -> str:
        path = tmp_path / "slotgate.toml"
        path.write_text(text)
        return str(path)

    return written


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[object], int]], None]:
    """Replace the function that `slotgate serve` or `slotgate run` starts."""
    modules = {"serve": "slotgate.gateway.app.serve", "run": "slotgate.gateway.tools.run.run"}

    def put(name: str, function: Callable[[object], int]) -> None:
        module = ModuleType(modules[name])
        setattr(module, name, function)
        monkeypatch.setitem(sys.modules, modules[name], module)

    return put


def test_check_explains_a_valid_configuration(config: Callable[[str], str]) -> None:
    result = slotgate("check", "--config", config(VALID))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "gpu0 at http://127.0.0.1:8081" in result.stdout


def test_the_environment_may_name_the_configuration(config: Callable[[str], str]) -> None:
    assert slotgate("check", environ={"SLOTGATE_CONFIG": config(VALID)}).exit_code == 0


def test_the_environment_overrides_the_file(config: Callable[[str], str]) -> None:
    result = slotgate("check", "--config", config(VALID), environ={"SLOTGATE_SERVER__PORT": "9999"})
    assert "http://127.0.0.1:9999" in result.stdout


@pytest.mark.parametrize("command", ["check", "serve"])
def test_all_faults_are_on_stderr_one_per_line_with_exit_code_2(
    command: str, config: Callable[[str], str]
) -> None:
    result = slotgate(command, "--config", config(INVALID))
    assert (result.exit_code, result.stdout) == (2, "")
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["server.port", "timeouts.idle_s"]


@pytest.mark.parametrize("command", ["check", "serve"])
def test_without_a_configuration_the_error_says_how_to_give_one(command: str) -> None:
    result = slotgate(command)
    assert result.exit_code == 2
    assert "give --config FILE or set SLOTGATE_CONFIG" in result.stderr


def test_a_missing_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    result = slotgate("check", "--config", str(tmp_path / "none.toml"))
    assert result.exit_code == 2
    assert result.stderr == f"{tmp_path}/none.toml: cannot be read: No such file or directory\n"


def test_serve_runs_the_settings_and_exits_with_the_server_s_code(
    config: Callable[[str], str], stand_in: Callable[[str, Callable[..., int]], None]
) -> None:
    served: list[object] = []

    def serve(settings: object, *, load: Callable[[], Settings]) -> int:
        served.append(settings)
        assert load() == settings, "the configuration can be loaded again"
        return 3

    stand_in("serve", serve)
    assert slotgate("serve", "--config", config(VALID)).exit_code == 3
    [settings] = served
    assert isinstance(settings, Settings)
    assert settings.backends[0].name == "gpu0"


def test_run_passes_its_options_on(
    tmp_path: Path, stand_in: Callable[[str, Callable[[object], int]], None]
) -> None:
    ran: list[object] = []

    def run(options: object) -> int:
        ran.append(options)
        return 0

    stand_in("run", run)
    model, program = tmp_path / "m.gguf", tmp_path / "llama-server"
    model.touch()
    program.touch()
    words = f"--port 9000 --host 0.0.0.0 --parallel 4 --ctx 8192 --llama-server {program}".split()
    assert slotgate("run").exit_code == 0
    assert slotgate("run", str(model), *words).exit_code == 0
    assert ran == [RunOptions(), RunOptions(model, "0.0.0.0", 9000, 4, 8192, program)]


@pytest.mark.parametrize(
    "wrong",
    [SettingsError((SettingsFault("server.port", "is taken"),)), KeysError("cannot keep keys in /state")],
    ids=["settings", "keys"],
)
def test_an_error_of_run_is_one_line_and_exit_code_2(
    wrong: Exception, stand_in: Callable[[str, Callable[[object], int]], None]
) -> None:
    def run(_: object) -> int:
        raise wrong

    stand_in("run", run)
    result = slotgate("run")
    assert (result.exit_code, result.stderr) == (2, f"{wrong}\n")


@pytest.mark.parametrize(
    "words", [["--port", "0"], ["--port", "70000"], ["--parallel", "0"], ["--ctx", "x"], ["/no/such.gguf"]]
)
def test_a_nonsensical_option_is_exit_code_2(words: list[str]) -> None:
    assert slotgate("run", *words).exit_code == 2


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["new"], ["tenant", 0, "key_hashes", 0]),
        (["new", "--operator"], ["server", "operator_key_hashes", 0]),
    ],
)
def test_a_new_key_comes_with_its_hash_and_lines_to_paste(words: list[str], path: list[Any]) -> None:
    result = slotgate("keys", *words)
    assert result.exit_code == 0
    key, digest = (line.split()[1] for line in result.stdout.splitlines()[:2])
    assert digest == hash_key(key)
    pasted: Any = tomllib.loads(result.stdout.partition("\n\n")[2])
    for step in path:
        pasted = pasted[step]
    assert pasted == digest


def test_the_version_is_the_package_s() -> None:
    assert slotgate("--version").stdout.startswith("slotgate, version ")


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_process_with_a_faulty_configuration_exits_2(config: Callable[[str], str]) -> None:
    done = python("-m", "slotgate", "check", "--config", config(INVALID))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.slow
def test_a_process_with_the_example_configuration_exits_0() -> None:
    done = python("-m", "slotgate", "check", "--config", "docs/slotgate.example.toml")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("slotgate.gateway.cli", ["pydantic", "starlette", "uvicorn", "httpx", "asyncio"]),
        ("slotgate.gateway.settings", ["starlette", "uvicorn", "httpx"]),
        ("slotgate.gateway.auth.keys", ["pydantic", "starlette", "uvicorn", "httpx"]),
    ],
)
def test_a_command_without_a_server_imports_none(module: str, absent: list[str]) -> None:
    done = python("-c", f"import sys, {module}; print([name for name in {absent} if name in sys.modules])")
    assert done.stdout == "[]\n"


def test_usage_without_a_configuration_reads_the_records_of_run(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    result = slotgate("usage", environ=environ)
    file = tmp_path / "slotgate" / "usage.db"
    assert (result.exit_code, result.stderr) == (2, f"there is no file {file}\n")
    file.parent.mkdir()
    SqliteStore(file).prepare()
    result = slotgate("usage", environ=environ)
    assert (result.exit_code, result.stdout) == (0, "no records\n")


@pytest.mark.parametrize("words", [("--by", "nothing"), ("--from", "yesterday"), ("--to", "2027-13-01")])
def test_nonsensical_usage_options_exit_2_with_one_line(words: tuple[str, str], tmp_path: Path) -> None:
    result = slotgate("usage", *words, environ={"XDG_STATE_HOME": str(tmp_path)})
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)


def test_usage_exits_2_if_usage_is_not_recorded(config: Callable[[str], str]) -> None:
    result = slotgate("usage", "--config", config(VALID + '[usage]\nstore = "none"\n'))
    assert result.exit_code == 2
    assert 'usage.store is "none"' in result.stderr


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


@pytest.mark.parametrize(("path", "command"), list(commands(main)))
def test_every_option_says_what_it_does_and_what_its_default_is(
    path: tuple[str, ...], command: click.Command
) -> None:
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help, (path, option.name)
            plain = option.required or option.is_flag or option.multiple or option.show_default
            told = "Default" in option.help or option.show_envvar
            assert plain or told or option.name in OFF_UNLESS_GIVEN, (path, option.name)


OFF_UNLESS_GIVEN = {"ready", "junit", "replay", "model", "upstream", "form"}
"""Options that switch something on: without them it is off."""
