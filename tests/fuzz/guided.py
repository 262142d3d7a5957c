"""Run one target under Atheris, which is guided by the lines that an input reaches.

    python -m tests.fuzz.guided TARGET FOLDER... [libFuzzer options]

Inputs that reach something new are written to the first folder. Atheris ends the process.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__: list[str] = []


def main(name: str, arguments: list[str]) -> None:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["slotgate"]):
        targets = importlib.import_module("tests.fuzz.targets")
    target = targets.TARGETS[name]

    def once(data: bytes) -> None:
        target(bytes(data))

    again = f"{sys.executable} -m tests.fuzz.guided {name}"  # a merge starts its own program through a shell
    atheris.Setup([again, *arguments], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
