"""The wheel and the sdist hold the right files, and work in a project that has packages with our names."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

FOLDERS = ("gateway", "middleware", "admission")
"""Their names are common ones, so projects that install slotgate may have packages of the same names."""
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
PROJECT = {
    **{f"{name}/__init__.py": 'OWNER = "this project"\n' for name in FOLDERS},
    "conftest.py": "import gateway\n\nassert gateway.OWNER\n",
    "tests/test_project.py": """
import json
import urllib.request

import admission
import gateway
import middleware


def test_the_projects_own_packages_are_imported():
    assert {module.OWNER for module in (admission, gateway, middleware)} == {"this project"}


def test_the_plugin_answers(slotgate, scripted_llama):
    scripted_llama.reply(text="Forty-two.")
    request = urllib.request.Request(
        f"{slotgate.url}/v1/chat/completions",
        json.dumps({"model": slotgate.models[0], "messages": [{"role": "user", "content": "hi"}]}).encode(),
        {"authorization": f"Bearer {slotgate.key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as response:
        answer = json.load(response)
    assert answer["choices"][0]["message"]["content"] == "Forty-two."
""",
}


@dataclass(frozen=True)
class Project:
    """A project that uses slotgate, and the virtual environment into which the wheel is installed."""

    folder: Path
    bin: Path

    def run(self, *command: str, **variables: str) -> str:
        """Run a program of the virtual environment in the project's folder. Return what it printed."""
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), **variables}
        return run([str(self.bin / command[0]), *command[1:]], self.folder, environ)


def run(command: list[str], folder: Path, environ: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} in {folder}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def built(kind: str, source: Path, into: Path) -> Path:
    """Build an sdist or a wheel from the folder `source` as a build front end does, without a network."""
    run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)], source)
    [package] = into.iterdir()
    return package


def contents_of(wheel: Path) -> dict[str, bytes]:
    """Return name -> content for the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def assert_same_files(wheel: Path, expected: Path) -> None:
    """Compare the names first: a missing file is easier to read than a difference of two dictionaries."""
    found, wanted = contents_of(wheel), contents_of(expected)
    assert sorted(found) == sorted(wanted)
    assert [name for name, content in wanted.items() if found[name] != content] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project, with the wheel installed in a virtual environment of its own.

    What slotgate depends on comes from the environment that runs this test, by a line in a `.pth` file.
    Python searches such a path for modules, but does not read `.pth` files in it. So the editable install of
    this repository cannot be imported there.
    """
    folder = tmp_path_factory.mktemp("project")
    for name, text in PROJECT.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    run([*PIP, f"--python={python}", "install", "--no-deps", "--no-index", str(wheel)], folder)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # pip writes the same script. Unlike `python -m pytest`, it leaves the project out of `sys.path`.
    script = environment / "bin" / "pytest"
    script.write_text(f"#!{python}\nfrom pytest import console_main\nraise SystemExit(console_main())\n")
    script.chmod(0o755)
    return Project(folder / "source", environment / "bin")


def test_wheel_has_one_top_level_name(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in contents_of(wheel)}
    [metadata] = [top for top in tops if re.fullmatch(r"slotgate-[0-9.]+\.dist-info", top)]
    assert tops == {"slotgate", metadata}


def test_wheel_holds_every_source_file(wheel: Path) -> None:
    tracked = run(["git", "ls-files", "-z", *FOLDERS], ROOT).split("\0") if (ROOT / ".git").exists() else []
    expected = {f"slotgate/{name}" for name in tracked if name and (ROOT / name).exists()}
    assert expected - set(contents_of(wheel)) == set()


def test_wheel_from_sdist_equals_wheel_from_checkout(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    run(
        [*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(tmp_path), str(sdist)],
        tmp_path,
    )
    [from_sdist] = tmp_path.glob("*.whl")
    assert_same_files(from_sdist, wheel)


def test_sdist_holds_no_file_twice(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert [
        name for name in names if re.match(r"\.package/slotgate/(gateway|middleware|admission)", name)
    ] == []
    assert "gateway/cli/program.py" in names


def test_files_copied_by_dockerfile_suffice_to_build(wheel: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for line in re.findall(r"^COPY (?!--)(.+)$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE):
        *names, into = line.split()
        for name in names:
            copy(ROOT / name, source / into / (Path(name).name if into == "./" else ""))
    assert_same_files(built("wheel", source, tmp_path / "wheel"), wheel)


def copy(path: Path, to: Path) -> None:
    """Copy as `COPY` does: links inside a folder stay links."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, to, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(path, to)


@pytest.mark.parametrize("command", [("pytest",), ("python", "-m", "pytest")], ids=" ".join)
def test_project_with_packages_of_the_same_names_runs_its_tests(
    project: Project, command: tuple[str, ...]
) -> None:
    assert "2 passed" in project.run(*command, "-q", "-p", "no:cacheprovider")


def test_slotgate_starts_where_its_folders_names_are_taken(project: Project) -> None:
    assert project.run("slotgate", "--version", PYTHONPATH=".").startswith("slotgate")
    assert project.run("python", "-m", "slotgate", "--version").startswith("slotgate")


def test_folders_are_not_importable_by_their_own_names(project: Project) -> None:
    found = "import importlib.util as u; print([n for n in {} if u.find_spec(n)])"
    assert project.run("python", "-P", "-c", found.format(FOLDERS)) == "[]\n"
    [place] = project.run("python", "-P", "-c", "import slotgate; print(slotgate.__file__)").split()
    assert Path(place).is_relative_to(project.bin.parent)
