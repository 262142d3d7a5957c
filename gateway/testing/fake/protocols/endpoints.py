"""The paths of llama-server, grouped by the endpoint that answers them."""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["LLAMA_ENDPOINTS", "LlamaEndpoint"]


class LlamaEndpoint(Enum):
    """An endpoint of llama-server. Each has its own form of request and answer."""

    CHAT = "chat"
    TEXT = "text"
    NATIVE = "native"
    INFILL = "infill"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    NATIVE_EMBEDDINGS = "native embeddings"
    RERANK = "rerank"
    SPEECH = "speech"
    COUNT = "count"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    TEMPLATE = "template"

    @property
    def generates(self) -> bool:
        return self in _GENERATING

    @property
    def takes_slot(self) -> bool:
        return self.generates or self in (
            LlamaEndpoint.EMBEDDINGS,
            LlamaEndpoint.NATIVE_EMBEDDINGS,
            LlamaEndpoint.RERANK,
        )


_GENERATING: Final = frozenset(
    {
        LlamaEndpoint.CHAT,
        LlamaEndpoint.TEXT,
        LlamaEndpoint.NATIVE,
        LlamaEndpoint.INFILL,
        LlamaEndpoint.RESPONSES,
        LlamaEndpoint.MESSAGES,
        LlamaEndpoint.SPEECH,
    }
)

LLAMA_ENDPOINTS: Final[dict[str, LlamaEndpoint]] = {
    "/v1/chat/completions": LlamaEndpoint.CHAT,
    "/chat/completions": LlamaEndpoint.CHAT,
    "/v1/completions": LlamaEndpoint.TEXT,
    "/completion": LlamaEndpoint.NATIVE,
    "/completions": LlamaEndpoint.NATIVE,
    "/infill": LlamaEndpoint.INFILL,
    "/v1/responses": LlamaEndpoint.RESPONSES,
    "/responses": LlamaEndpoint.RESPONSES,
    "/v1/messages": LlamaEndpoint.MESSAGES,
    "/v1/messages/count_tokens": LlamaEndpoint.COUNT,
    "/v1/embeddings": LlamaEndpoint.EMBEDDINGS,
    "/embeddings": LlamaEndpoint.NATIVE_EMBEDDINGS,
    "/embedding": LlamaEndpoint.NATIVE_EMBEDDINGS,
    "/v1/rerank": LlamaEndpoint.RERANK,
    "/rerank": LlamaEndpoint.RERANK,
    "/v1/reranking": LlamaEndpoint.RERANK,
    "/reranking": LlamaEndpoint.RERANK,
    "/v1/audio/transcriptions": LlamaEndpoint.SPEECH,
    "/tokenize": LlamaEndpoint.TOKENIZE,
    "/detokenize": LlamaEndpoint.DETOKENIZE,
    "/apply-template": LlamaEndpoint.TEMPLATE,
}
