"""The request headers that slotgate defines for its clients, each read once and turned into a value.

A header that is missing, or has a value that is not in this table, leaves its option at the default. Proxies
and old clients may send anything, and no request fails for it.

    x-slotgate-priority: batch               go behind interactive requests
    x-slotgate-session: ID                   send the conversation to the backend that knows it; also read
                                             as x-session-id and x-claude-code-session-id
    x-slotgate-keepalive: comment|chunk|off  the form of keep-alives in this stream
    x-slotgate-supersede: KEY                end the tenant's running request with the same key
    x-slotgate-queue-events: 1               state the place in the queue in comments
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slotgate.gateway.api.dialects import KeepAlive

__all__ = ["MAX_KEY_BYTES", "RequestOptions"]

MAX_KEY_BYTES = 256
"""Longer session and supersede keys are cut off here, so that a client cannot fill the gateway's memory."""
_SESSION_HEADERS = (b"x-slotgate-session", b"x-session-id", b"x-claude-code-session-id")
"""The first of these headers that is not empty names the session. The last one is Claude Code's."""
_KEEPALIVE_FORMS: Mapping[bytes, KeepAlive] = {b"comment": "comment", b"chunk": "chunk", b"off": "off"}


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options that a client gave in headers."""

    batch: bool = False
    """The request asks for the priority `batch`. A header can lower a tenant's priority, never raise it."""
    session: bytes = b""
    """The client's name for the conversation; empty if it gave none."""
    keepalive: KeepAlive | None = None
    """The form of keep-alives; None: as the settings say."""
    supersede_key: bytes = b""
    """A newer request with this key ends the older one; empty: the request supersedes nothing."""
    queue_events: bool = False
    """The stream states the place in the queue in comments."""

    @classmethod
    def from_headers(cls, headers: Mapping[bytes, bytes]) -> RequestOptions:
        """Read the options from headers by lower-case name. Never raises."""
        session = next((headers[name] for name in _SESSION_HEADERS if headers.get(name)), b"")
        return cls(
            batch=_word(headers, b"x-slotgate-priority") == b"batch",
            session=session[:MAX_KEY_BYTES],
            keepalive=_KEEPALIVE_FORMS.get(_word(headers, b"x-slotgate-keepalive")),
            supersede_key=headers.get(b"x-slotgate-supersede", b"")[:MAX_KEY_BYTES],
            queue_events=headers.get(b"x-slotgate-queue-events", b"").strip() == b"1",
        )

    def session_key(self, tenant: str, members: Mapping[str, Any]) -> bytes:
        """Return the key by which affinity knows the conversation, or b"" if the client did not name it.

        A header wins over the body's `prompt_cache_key`, which OpenAI's clients send. The key begins with the
        tenant, so that two tenants with the same session name do not meet.
        """
        named = self.session
        prompt_cache_key = members.get("prompt_cache_key")
        if not named and isinstance(prompt_cache_key, str):
            named = prompt_cache_key.encode(errors="replace")[:MAX_KEY_BYTES]
        return tenant.encode() + b"\0" + named if named else b""


def _word(headers: Mapping[bytes, bytes], name: bytes) -> bytes:
    return headers.get(name, b"").strip().lower()
