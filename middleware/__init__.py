"""Raw ASGI middleware, one class per file. The list of layers is in `slotgate.gateway.app.application`."""

from __future__ import annotations

from slotgate.middleware.access_log import AccessLog
from slotgate.middleware.authentication import Authentication
from slotgate.middleware.cors import Cors
from slotgate.middleware.error_boundary import ErrorBoundary
from slotgate.middleware.loop_guard import LoopGuard
from slotgate.middleware.request_id import RequestId
from slotgate.middleware.traced import Traced
from slotgate.middleware.web_guard import WebGuard

__all__ = [
    "AccessLog",
    "Authentication",
    "Cors",
    "ErrorBoundary",
    "LoopGuard",
    "RequestId",
    "Traced",
    "WebGuard",
]
