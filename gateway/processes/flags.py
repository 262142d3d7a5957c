"""Which options a build of llama-server knows, by its own `--help`: an unknown one would end it at once."""

from collections.abc import Mapping, Sequence
from typing import Final

from slotgate.gateway.processes.child import Child
from slotgate.gateway.processes.output import ChildOutput

_HELP_TIMEOUT_S: Final = 10.0


async def knows_option(command: Sequence[str], environment: Mapping[str, str], option: str) -> bool:
    """Whether `command --help` names `option`; False where there is no telling. Raises as `Child.start`."""
    lines: list[str] = []
    child = await Child.start((*command, "--help"), environment, ChildOutput(lines.append))
    try:
        await child.is_over_within(_HELP_TIMEOUT_S)
    finally:
        await child.end(grace_s=0.0)
    return any(option in line.replace(",", " ").split() for line in lines)
