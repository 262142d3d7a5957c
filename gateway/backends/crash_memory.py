"""Remembers which requests ran on a backend when it died, to give none of them to a second backend twice.

Among the requests that ran on a backend when it died may be the one that killed it. Nobody can tell which.
So each of them is a suspect, and a suspect that was lost with an earlier death is not tried again. A request
that ran alone is the only suspect.

    lost at 0.00 s  A, B, C --death--> suspects A, B, C       each of them is tried once more
    lost at 9.30 s  B, D    --death--> suspects B, D          D is tried once more, B is not

Requests that are lost within `TOGETHER_S` on one backend were lost with the same death. The memory holds
`MOST` fingerprints for `REMEMBERED_S`. This module never awaits; times are passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

__all__ = ["MOST", "REMEMBERED_S", "TOGETHER_S", "CrashMemory", "Loss"]

TOGETHER_S: Final = 1.0
REMEMBERED_S: Final = 3600.0
"""Clients try a failed request again for minutes, and a person who asks again does so within the hour."""
MOST: Final = 1024


@dataclass(slots=True, eq=False)
class Loss:
    """The requests that one backend lost at the same moment. It may have died."""

    at: float
    requests: int = 0


class CrashMemory:
    def __init__(self) -> None:
        self._losses: dict[str, Loss] = {}
        """Pool name -> its last loss."""
        self._suspects: OrderedDict[int, tuple[float, Loss | None]] = OrderedDict()
        """Fingerprint -> the time and the loss at which it was remembered last."""

    def __repr__(self) -> str:
        return f"<CrashMemory {len(self._suspects)} suspects>"

    def __len__(self) -> int:
        return len(self._suspects)

    def lost(self, pool_name: str, *, granted_at: float, now: float) -> Loss:
        """Note that a request was cut short. Return the loss that it belongs to.

        A request that was granted its slot later than the last loss was lost with another death.
        """
        loss = self._losses.get(pool_name)
        if loss is None or now - loss.at > TOGETHER_S or granted_at > loss.at:
            loss = self._losses[pool_name] = Loss(now)
        loss.requests += 1
        return loss

    def forget_pool(self, pool_name: str) -> None:
        """Forget the loss of a pool that is no more. Its suspects stay."""
        self._losses.pop(pool_name, None)

    def suspect(self, fingerprint: int, loss: Loss | None, now: float) -> bool:
        """Remember a request that may have killed its backend. Return True if it was a suspect before.

        `loss` is None if nothing but the request itself says that its backend may have died.
        """
        at, known = self._suspects.get(fingerprint, (now, loss))
        fresh = now - at <= REMEMBERED_S
        again = fingerprint in self._suspects and fresh and (known is not loss or loss is None)
        self._suspects[fingerprint] = now, loss
        self._suspects.move_to_end(fingerprint)
        if len(self._suspects) > MOST:
            self._suspects.popitem(last=False)
        return again
