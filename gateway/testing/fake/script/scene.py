"""What a scripted llama-server is and how it answers: plain values, read by `script.py` from TOML or JSON.

Scene
  Machine           slots, context, load time, pings: what all answers share
  Reply …           the first that matches a request answers it
    When              which requests
    Speech, words     what is said
    Pace              when each token comes
    Fault             what goes wrong, and after how many tokens
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from slotgate.gateway.testing.fake.script.answer_content import Call

__all__ = ["Fault", "FaultKind", "Machine", "Pace", "Reply", "Scene", "When"]


class FaultKind(Enum):
    ERROR = "error"
    """An HTTP error in place of an answer: `status`, `message`, `type`."""
    LOADING = "loading"
    """503 `Loading model`, as while the model loads."""
    ERROR_FRAME = "error-frame"
    """An error inside the stream, in the form of its protocol, a clean end, no `[DONE]`."""
    OLD_ERROR_FRAME = "old-error-frame"
    """The same as earlier builds wrote it: a line that begins with `error:`."""
    KV_EXHAUSTED = "kv-exhausted"
    """All streams of the server end together with "Context size has been exceeded."."""
    TRUNCATE = "truncate"
    """The connection is closed without the end of the body."""
    RST = "rst"
    """The connection is reset."""
    STALL = "stall"
    """Nothing more, for `seconds` or for ever; the slot stays busy."""
    CRASH = "crash"
    """The whole server is gone for `seconds`, and loads its model again after that."""
    SLOW_CLOSE = "slow-close"
    """All is said, but the end of the body comes `seconds` later."""
    NO_DONE = "no-done"
    """The stream ends without its last event."""
    HALF_FRAMES = "half-frames"
    """Each event comes in two writes, `seconds` apart, cut inside of a character where there is one."""
    CRLF = "crlf"
    """Lines of the stream end with CR LF."""
    BOM = "bom"
    """The stream begins with a byte order mark."""
    GIANT_FRAME = "giant-frame"
    """One token of `bytes` bytes."""
    GARBAGE = "garbage"
    """One event whose data is no JSON."""
    WRONG_LENGTH = "wrong-length"
    """An answer that is no stream states `bytes` more than it has, and ends there."""

    @property
    def damages(self) -> bool:
        """Whether the answer is whole all the same, and only its form is unusual."""
        return self in _DAMAGES


_DAMAGES = frozenset(
    {FaultKind.SLOW_CLOSE, FaultKind.HALF_FRAMES, FaultKind.CRLF, FaultKind.BOM, FaultKind.GIANT_FRAME}
)


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    after: int = 0
    """Tokens that are said before it."""
    seconds: float | None = None
    bytes: int | None = None
    status: int = 500
    message: str = "scripted failure"
    type: str = "server_error"


@dataclass(frozen=True, slots=True)
class Pace:
    """When tokens come. 0 tokens a second means: as fast as they can be written."""

    prefill_s: float = 0.0
    prompt_tokens_per_s: float = 0.0
    """The prompt takes its length at this pace, beside `prefill_s`."""
    tokens_per_s: float = 0.0
    jitter: float = 0.0
    """Each gap is up to this share longer or shorter, from the seed."""
    at_s: tuple[float, ...] = ()
    """Times of the first tokens in seconds after the prompt; the rest goes on at `tokens_per_s`."""

    def prefill(self, prompt_tokens: int) -> float:
        reading = prompt_tokens / self.prompt_tokens_per_s if self.prompt_tokens_per_s else 0.0
        return self.prefill_s + reading


@dataclass(frozen=True, slots=True)
class When:
    """All that is given must hold."""

    model: str | None = None
    path: str | None = None
    contains: str | None = None
    """In the last text that a user said, or in the prompt."""
    stream: bool | None = None
    tools: bool | None = None
    """Whether the request offers tools."""
    nth: int | None = None
    """Only the so-manieth request that matches the rest, counted from 1."""
    times: int | None = None
    """Only so many of them."""


@dataclass(frozen=True, slots=True)
class Reply:
    when: When = field(default_factory=When)
    text: str | None = None
    """What is said; None makes words up."""
    reasoning: str = ""
    tokens: int = 16
    """How many words are made up, where the request sets no limit of its own."""
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    prompt_tokens: int | None = None
    """None counts the prompt."""
    cached_tokens: int = 0
    pace: Pace = field(default_factory=Pace)
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The server: what it was started with."""

    model: str = "fake"
    models: tuple[str, ...] = ()
    """Further names in `/v1/models`; any name is answered."""
    slots: int = 1
    n_ctx: int = 4096
    """Context of one slot, or of all together where the cache is unified."""
    seed: int = 1
    strict: bool = False
    """Only what a reply matches is answered; anything else is 404 and counted."""
    load_s: float = 0.0
    parse_s_per_mib: float = 0.0
    """How long a body is read before its request takes a place: `/slots` says idle meanwhile."""
    ping_s: float = 30.0
    quiet_s: float = 1.0
    """How long the whole server must be without a result before closed connections are looked for."""
    kv_unified: bool = False
    embeddings: bool = True
    rerank: bool = True
    slots_endpoint: bool = True
    metrics_endpoint: bool = True
    infill: bool = True
    audio: bool = False
    dimensions: int = 32
    """Of an embedding."""
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Scene:
    machine: Machine = field(default_factory=Machine)
    replies: tuple[Reply, ...] = ()
    otherwise: Reply = field(default_factory=Reply)
    """Answers what no reply matches."""

    @property
    def models(self) -> tuple[str, ...]:
        """Every name that the script knows, the server's own first."""
        names = (self.machine.model, *self.machine.models, *(reply.when.model for reply in self.replies))
        return tuple(dict.fromkeys(name for name in names if name))


FOREVER = math.inf
