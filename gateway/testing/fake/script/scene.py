"""The values of a script: what the server is and how it answers. `reader.py` reads them from TOML or JSON.

Scene
  Machine           slots, context, load time, pings: the same for all answers
  Reply …           the first reply that matches a request answers it
    When              the requests that the reply matches
    text, calls …     the content of the answer
    Pace              the time of each token
    ScriptedFault     what goes wrong, and after how many tokens
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from slotgate.gateway.testing.fake.script.answer_content import Call

__all__ = ["FaultKind", "Machine", "Pace", "Reply", "Scene", "ScriptedFault", "When"]


class FaultKind(Enum):
    """The faults that a script can ask for."""

    ERROR = "error"
    """An HTTP error in place of an answer, made of `status`, `message` and `type`."""
    LOADING = "loading"
    """503 `Loading model`, as llama-server answers while it loads the model."""
    ERROR_FRAME = "error-frame"
    """An error inside the stream in the form of its protocol, then the end of the body without `[DONE]`."""
    OLD_ERROR_FRAME = "old-error-frame"
    """An error in the form of earlier builds: a line that begins with `error:`."""
    KV_EXHAUSTED = "kv-exhausted"
    """All streams of the server end at once with the error "Context size has been exceeded."."""
    TRUNCATE = "truncate"
    """The connection is closed without the end of the body."""
    RST = "rst"
    """The connection is reset."""
    STALL = "stall"
    """The answer stops, for `seconds` or for ever. The slot stays busy."""
    CRASH = "crash"
    """The whole server is gone for `seconds`. After that it loads its model again."""
    SLOW_CLOSE = "slow-close"
    """The answer is complete, but the end of the body comes `seconds` later."""
    NO_DONE = "no-done"
    """The stream ends without its last event."""
    HALF_FRAMES = "half-frames"
    """Each event comes in two writes, `seconds` apart, cut inside a multi-byte character if it has one."""
    CRLF = "crlf"
    """Lines of the stream end with CR LF."""
    BOM = "bom"
    """The stream begins with a byte order mark."""
    GIANT_FRAME = "giant-frame"
    """The answer has a token of `bytes` bytes."""
    GARBAGE = "garbage"
    """The stream has an event whose data is not JSON."""
    WRONG_LENGTH = "wrong-length"
    """The content-length of a buffered answer is `bytes` too large."""


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """A fault of an answer. Members that its kind does not use are ignored."""

    kind: FaultKind
    after: int = 0
    """The number of tokens before the fault."""
    seconds: float | None = None
    bytes: int | None = None
    status: int = 500
    message: str = "scripted failure"
    type: str = "server_error"


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of the tokens. A rate of 0 means as fast as tokens can be written."""

    prefill_s: float = 0.0
    prompt_tokens_per_s: float = 0.0
    """The rate at which the prompt is read, in addition to `prefill_s`."""
    tokens_per_s: float = 0.0
    jitter: float = 0.0
    """Each gap is longer or shorter by up to this share, at random from the seed."""
    at_s: tuple[float, ...] = ()
    """Times of the first tokens, in seconds after the prompt. The rest follows at `tokens_per_s`."""

    def prefill(self, prompt_tokens: int) -> float:
        reading = prompt_tokens / self.prompt_tokens_per_s if self.prompt_tokens_per_s else 0.0
        return self.prefill_s + reading


@dataclass(frozen=True, slots=True)
class When:
    """The conditions of a reply. A request must meet all that are given."""

    model: str | None = None
    path: str | None = None
    contains: str | None = None
    """Text inside the last user message, or inside the prompt."""
    stream: bool | None = None
    tools: bool | None = None
    """True matches requests that offer tools, False those that do not."""
    nth: int | None = None
    """Match only the nth request that meets the other conditions, counted from 1."""
    times: int | None = None
    """Match at most this many requests."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and the requests that it is for."""

    when: When = field(default_factory=When)
    text: str | None = None
    """The text of the answer. None stands for made-up words."""
    reasoning: str = ""
    tokens: int = 16
    """The number of made-up words, if the request sets no limit."""
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    prompt_tokens: int | None = None
    """The stated length of the prompt. None counts the tokens of the prompt."""
    cached_tokens: int = 0
    pace: Pace = field(default_factory=Pace)
    fault: ScriptedFault | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The server, with the options that it was started with."""

    model: str = "fake"
    models: tuple[str, ...] = ()
    """Further names in `/v1/models`. Requests for any name are answered."""
    slots: int = 1
    n_ctx: int = 4096
    """Context of one slot, or of all slots together if the cache is unified."""
    seed: int = 1
    strict: bool = False
    """Answer only requests that a reply matches. Any other is answered 404 and counted as unmatched."""
    load_s: float = 0.0
    parse_s_per_mib: float = 0.0
    """Time to read a body before its request takes a slot. `/slots` shows the slot as idle meanwhile."""
    ping_s: float = 30.0
    quiet_s: float = 1.0
    """Time without any result in the whole server after which it looks for closed connections."""
    kv_unified: bool = False
    embeddings: bool = True
    rerank: bool = True
    slots_endpoint: bool = True
    metrics_endpoint: bool = True
    infill: bool = True
    audio: bool = False
    dimensions: int = 32
    """The length of an embedding."""
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole script."""

    machine: Machine = field(default_factory=Machine)
    replies: tuple[Reply, ...] = ()
    otherwise: Reply = field(default_factory=Reply)
    """The reply to requests that no other reply matches."""

    @property
    def models(self) -> tuple[str, ...]:
        """Every model name in the script, the server's own first."""
        names = (self.machine.model, *self.machine.models, *(reply.when.model for reply in self.replies))
        return tuple(dict.fromkeys(name for name in names if name))
