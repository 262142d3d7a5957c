"""What a request to an endpoint asked for: its body, read and understood once, whatever its form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope

from slotgate.gateway.api.endpoints import Endpoint
from slotgate.gateway.api.request import BodyParser, GenerationRequest, Upgrade
from slotgate.gateway.http.context import TenantIdentity, headers_of
from slotgate.gateway.http.multipart import Form, boundary_of
from slotgate.gateway.http.request_body import Body, read_body, read_pieces
from slotgate.gateway.settings import ServerSettings

__all__ = ["ParsedRequest", "RequestReader"]

_JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    request: GenerationRequest
    members: dict[str, Any]
    """Of the JSON object, or the text fields of the form."""
    content: bytes | Form
    size: int
    content_type: bytes = _JSON


class RequestReader:
    """For all endpoints together: big bodies are parsed one at a time."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._bodies = BodyParser()

    async def read(self, endpoint: Endpoint, scope: Scope, receive: Receive) -> ParsedRequest:
        """Raises `ClientError` for what is too big, too slow, no JSON, or not what the endpoint takes."""
        most, within_s = self._settings.max_body_bytes, self._settings.body_timeout_s
        if not endpoint.multipart:
            body = await read_body(scope, receive, max_bytes=most, timeout_s=within_s)
            members = await self._bodies.parse(body)
            return ParsedRequest(GenerationRequest.of(members, endpoint.body), members, body, len(body))
        content_type = headers_of(scope).get(b"content-type", b"")
        form = Form(boundary_of(content_type))
        async for piece in read_pieces(scope, receive, max_bytes=most, timeout_s=within_s):
            form.feed(piece)
        form.finish()
        members = form.members()
        request = GenerationRequest.of(members, endpoint.body)
        return ParsedRequest(request, members, form, form.size, content_type)

    async def changed(
        self, asked: ParsedRequest, tenant: TenantIdentity, upstream_model: str | None, upgrade: Upgrade
    ) -> Body:
        """The body for the backend: as it came, but for the members that the gateway sets."""
        changes = asked.request.changes(asked.members, tenant, upstream_model, upgrade)
        if isinstance(asked.content, Form):
            return asked.content.changed(changes)
        return (await self._bodies.splice(asked.content, changes),)
