"""Reading the body of a request, as JSON or as a form, into parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope

from slotgate.gateway.api.endpoints import Endpoint
from slotgate.gateway.api.json_bodies import JsonBodyCodec
from slotgate.gateway.api.media_locations import AllowedMedia
from slotgate.gateway.api.prompt_size import PromptSize
from slotgate.gateway.api.request import AddedOptions, RequestParameters
from slotgate.gateway.http.context import TenantIdentity, headers_of
from slotgate.gateway.http.multipart import Form, boundary_of
from slotgate.gateway.http.request_body import Body, read_body, read_pieces
from slotgate.gateway.settings import ServerSettings

__all__ = ["ParsedRequest", "RequestReader"]

_JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    parameters: RequestParameters
    members: dict[str, Any]
    """The members of the JSON object, or the text fields of the form."""
    content: bytes | Form
    """The body as it came, or the form that holds its parts."""
    size: int
    """Bytes of the body."""
    prompt: PromptSize
    content_type: bytes = _JSON


class RequestReader:
    """Reads request bodies. All endpoints share one reader, so that big bodies are parsed one at a time."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._bodies = JsonBodyCodec()
        self._media = AllowedMedia(settings.allowed_media_hosts)

    async def read(
        self,
        endpoint: Endpoint,
        scope: Scope,
        receive: Receive,
        on_piece: Callable[[int], None] = lambda _: None,
    ) -> ParsedRequest:
        """Read and check the body. Raises `ClientError` if it is too big, too slow, malformed or wrong.

        `on_piece` is called with the size of each piece as it arrives, and may raise an error.
        """
        max_bytes, timeout_s = self._settings.max_body_bytes, self._settings.body_timeout_s
        if not endpoint.multipart:
            body = await read_body(
                scope, receive, max_bytes=max_bytes, timeout_s=timeout_s, on_piece=on_piece
            )
            members = await self._bodies.parse(body)
            await self._bodies.check_media(members, self._media)
            parameters = RequestParameters.from_members(members, endpoint.body_format)
            return ParsedRequest(
                parameters, members, body, len(body), await self._bodies.measure(members, body)
            )
        content_type = headers_of(scope).get(b"content-type", b"")
        form = Form(boundary_of(content_type))
        try:
            async for piece in read_pieces(
                scope, receive, max_bytes=max_bytes, timeout_s=timeout_s, on_piece=on_piece
            ):
                form.feed(piece)
            form.finish()
        finally:
            form.close()
        members = form.members()
        parameters = RequestParameters.from_members(members, endpoint.body_format)
        prompt = PromptSize(0, audio_bytes=form.size)
        return ParsedRequest(parameters, members, form, form.size, prompt, content_type)

    async def body_for_backend(
        self, parsed: ParsedRequest, tenant: TenantIdentity, upstream_model: str | None, added: AddedOptions
    ) -> Body:
        """Return the body for the backend: as it came, except for the members that the gateway sets."""
        changes = parsed.parameters.changes(parsed.members, tenant, upstream_model, added)
        if isinstance(parsed.content, Form):
            return parsed.content.changed(changes)
        return (await self._bodies.splice(parsed.content, changes),)
