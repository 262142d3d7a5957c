"""What `slotgate run` was asked for."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command line; `None`: not given, so found or chosen."""

    model: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    parallel: int | None = None
    ctx: int | None = None
    llama_server: Path | None = None
