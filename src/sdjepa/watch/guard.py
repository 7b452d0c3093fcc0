"""Who may come in: people on this machine, or whoever holds the token.

On a loopback address anybody on the machine is welcome, but not a page of another site that a
browser happens to have open: the name asked for must be this machine's, and a socket's origin must
be the page we served. Bound elsewhere, every request needs the token as well.
"""

import ipaddress
import secrets
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

POLICY_VIOLATION = 1008  # closes a websocket before it is accepted: the browser sees a refusal


def is_loopback(host: str) -> bool:
    """Whether an address or name can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses requests before the application sees them; `token` None asks for none."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        trouble = self._trouble(scope)
        if trouble is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            status, said = trouble
            await PlainTextResponse(said + "\n", status)(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": trouble[1]})

    def _trouble(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._token is None:
            if not is_loopback(urlsplit(f"//{host}").hostname or ""):
                return 403, "this server is for this machine alone"
        elif not self._knows(scope, headers, self._token):
            return 401, "open the address that sdjepa watch printed: it carries the token"
        if scope["type"] == "websocket":
            origin = headers.get("origin")
            # Programs send no origin; a browser always does.
            if origin is not None and urlsplit(origin).netloc != host:
                return 403, "another site may not watch"
        return None

    @staticmethod
    def _knows(scope: Scope, headers: Headers, token: str) -> bool:
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        kind, _, said = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            asked.append(said)
        return any(secrets.compare_digest(one.encode(), token.encode()) for one in asked)
