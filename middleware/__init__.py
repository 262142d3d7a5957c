"""Raw ASGI middleware, one class a file. The stack itself is a list in `gateway.app`."""

from middleware.access_log import AccessLog
from middleware.authentication import Authentication
from middleware.cors import Cors
from middleware.error_boundary import ErrorBoundary
from middleware.request_id import RequestId
from middleware.traced import Traced
from middleware.web_guard import WebGuard

__all__ = ["AccessLog", "Authentication", "Cors", "ErrorBoundary", "RequestId", "Traced", "WebGuard"]
