"""Finds the two parts of `slotgate run`: a llama-server and a model.

A part that an option or variable names is used, or reported if it is not usable; it is never passed over. If
no part is found, the error lists every place that was looked at.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from slotgate.gateway.tools.run.packages import MODEL_PACKAGE, SERVER_PACKAGE

__all__ = ["FoundModel", "FoundServer", "NotFoundError", "Packages", "find_model", "find_server"]

_PROGRAM: Final = "llama-server"
_GGUF: Final = b"GGUF"


class NotFoundError(Exception):
    """A part is missing or unusable, or there are several to choose from. The text is for the user."""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A llama-server program, and the environment variables that it needs to find its libraries."""

    path: Path
    environment: Mapping[str, str]
    origin: str


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A GGUF file."""

    path: Path
    size_bytes: int
    origin: str


class Packages(Protocol):
    """The parts that come as Python packages. `packages.Installed` implements it."""

    def server(self, environ: Mapping[str, str]) -> tuple[Path, Mapping[str, str]] | None:
        """Return the program of the wheel and the variables that it needs, or None."""

    def folder(self, name: str) -> Path | None:
        """Return the folder of an installed package without importing it, or None."""


def find_server(option: Path | None, environ: Mapping[str, str], packages: Packages) -> FoundServer:
    """Find the llama-server to run. Raises `NotFoundError`."""
    search_path = environ.get("PATH", os.defpath)
    named = {"--llama-server": option and str(option), "$LLAMA_SERVER": environ.get("LLAMA_SERVER")}
    for origin, name in named.items():
        if name:
            return _named_server(origin, name, search_path)
    if found := shutil.which(_PROGRAM, path=search_path):
        return FoundServer(Path(found), {}, "$PATH")
    if wheel := packages.server(environ):
        return FoundServer(*wheel, f"the package {SERVER_PACKAGE}")
    looked = (
        *(f"{origin}: not given" for origin in named),
        f"$PATH: no {_PROGRAM} in {search_path}",
        f"the package {SERVER_PACKAGE}: not installed (it exists for Linux on x86-64)",
    )
    raise NotFoundError(
        _nothing("llama-server", looked, "Install llama.cpp, or name it: --llama-server PATH")
    )


def find_model(option: Path | None, environ: Mapping[str, str], cwd: Path, packages: Packages) -> FoundModel:
    """Find the model to load. Raises `NotFoundError`, also if the working folder has several models."""
    variable = environ.get("SLOTGATE_MODEL")
    named = {"the argument": option, "$SLOTGATE_MODEL": Path(variable) if variable else None}
    for origin, path in named.items():
        if path:
            return _model(cwd / path, origin)
    if here := _models_in(cwd):
        return _model(_only(here), f"the folder {cwd}")
    folder = packages.folder(MODEL_PACKAGE)
    if folder and (packaged := _models_in(folder)):
        return _model(packaged[0], f"the package {MODEL_PACKAGE}")
    looked = (
        *(f"{origin}: not given" for origin in named),
        f"the folder {cwd}: no file ends in .gguf",
        f"the package {MODEL_PACKAGE}: {'no file ends in .gguf' if folder else 'not installed'}",
    )
    raise NotFoundError(_nothing("model", looked, "Name a GGUF file: slotgate run MODEL.gguf"))


def _named_server(origin: str, name: str, search_path: str) -> FoundServer:
    if found := shutil.which(name, path=search_path):
        return FoundServer(Path(found), {}, origin)
    raise NotFoundError(f"{origin}: {name} is not a program that can be run")


def _model(path: Path, origin: str) -> FoundModel:
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(_GGUF)) == _GGUF
            size_bytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise NotFoundError(f"{origin}: {path} cannot be read: {error.strerror}") from error
    if not is_gguf:
        raise NotFoundError(f"{origin}: {path} is not a GGUF file")
    return FoundModel(path, size_bytes, origin)


def _models_in(folder: Path) -> list[Path]:
    """Return the models of a folder: the first file of split models, and no multimodal projectors."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf" and path.is_file())
    return [path for path in files if not _is_a_later_part(path.stem) and "mmproj" not in path.stem.lower()]


def _is_a_later_part(stem: str) -> bool:
    """Return True for names such as `model-00002-of-00003`, which llama.cpp's gguf-split gives."""
    name, _, count = stem.rpartition("-of-")
    number = name.rpartition("-")[2]
    return count.isdigit() and number.isdigit() and int(number) > 1


def _only(models: list[Path]) -> Path:
    if len(models) == 1:
        return models[0]
    names = "".join(f"\n    {path.name}" for path in models)
    raise NotFoundError(
        f"{len(models)} models in {models[0].parent}:{names}\nName one: slotgate run {models[0].name}"
    )


def _nothing(what: str, looked: Iterable[str], advice: str) -> str:
    places = "".join(f"\n    {place}" for place in looked)
    return f"No {what} was found. Looked at:{places}\n{advice}"
