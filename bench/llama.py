"""The real llama-server with a tiny model, which is so fast that the cost of a gateway shows.

Server and model come from tests/support; the wheel of the server is one of the project's development
requirements.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.install import Unavailable

__all__ = ["llama_server"]


@contextmanager
def llama_server(work: Path, *, streams: int, tokens: int) -> Iterator[int]:
    """Run the llama-server and yield its port.

    Raises `Unavailable` without a llama-server or without the library that writes the model.
    """
    try:
        from tests.support.llama import MissingPartError, RealLlama  # noqa: PLC0415
        from tests.support.tiny_model import write_tiny_model  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(f"no model can be written: {error}") from error
    model = work / "tiny.gguf"
    write_tiny_model(model)
    context = streams * (tokens + 512)
    try:
        with RealLlama(model, slots=streams, context=context, args=["--alias", "upstream"]) as llama:
            yield llama.port
    except (MissingPartError, OSError) as error:
        raise Unavailable(str(error)) from error
