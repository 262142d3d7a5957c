"""`GET /admin/usage?group=tenant,model,day&from=2027-01-01&to=2027-01-31`: the recorded usage in sums."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from slotgate.gateway.http.errors import CapacityError, ClientError
from slotgate.gateway.http.replies import send_json
from slotgate.gateway.usage import DEFAULT_GROUP, NotRecorded, StoreError, UsageLedger, UsageQuery

__all__ = ["UsageTotals"]

_PARAMETERS = ("group", "from", "to")


class UsageTotals:
    """Days are UTC days; `from` and `to` are included. Records in memory are written to the store first."""

    def __init__(self, usage: UsageLedger) -> None:
        self._usage = usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = _query(scope["query_string"])
        try:
            report = await self._usage.report(query)
        except NotRecorded as off:
            message = 'usage is not recorded: usage.store is "none"'
            raise ClientError("usage_not_recorded", message, status=404) from off
        except StoreError as error:
            message = f"the records cannot be read now: {error}"
            raise CapacityError(503, "usage_unavailable", message) from error
        answer = {
            "group": query.group,
            "usage": [total.facts(query.group) for total in report.totals],
            "current": report.current,
            "complete": report.complete,
        }
        await send_json(send, 200, answer)


def _query(query_string: bytes) -> UsageQuery:
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"), keep_blank_values=True, max_num_fields=10, errors="strict"
        )
    except ValueError as wrong:
        raise ClientError("invalid_request", "the query cannot be read") from wrong
    given = dict(pairs)
    unknown = next((name for name in given if name not in _PARAMETERS), None)
    if unknown is not None:
        raise ClientError("invalid_request", f"there is no parameter {unknown[:40]!a}")
    if len(given) < len(pairs):
        raise ClientError("invalid_request", "a parameter is given twice")
    try:
        return UsageQuery.parse(given.get("group", DEFAULT_GROUP), given.get("from", ""), given.get("to", ""))
    except ValueError as wrong:
        raise ClientError("invalid_request", str(wrong)) from wrong
