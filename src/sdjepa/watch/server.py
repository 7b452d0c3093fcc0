"""A run comes in, a page at a local address goes out, until Ctrl-C.

The event loop talks, one thread simulates (see `session`). A viewer who falls behind misses frames;
one who sends nonsense is told so; one who drops out may come back.
"""

import asyncio
import contextlib
import json
import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from sdjepa.config import Plan
from sdjepa.data.episodes import Episodes
from sdjepa.errors import UserError
from sdjepa.runs import cores
from sdjepa.train.checkpoint import load_checkpoint, refuse_other
from sdjepa.train.source import tasks_for
from sdjepa.watch.guard import Guard, is_loopback
from sdjepa.watch.messages import Seen, parse
from sdjepa.watch.page import hello, page
from sdjepa.watch.session import Answer, Session
from sdjepa.watch.viewer import Viewer
from sdjepa.watch.world import World

MOST_BYTES = 4096  # of a message from a viewer
MOST_VIEWERS = 32
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class House:
    """The application: the page, the socket, the recordings."""

    def __init__(self, session: Session, world: World, *, label: str, out: Path) -> None:
        self._session, self._out = session, out
        self._viewers: set[Viewer] = set()
        self._hello = hello(world, label=label)
        self._page = page(label)
        self._stop: Callable[[], None] = lambda: None

    def application(self, *, token: str | None) -> Guard:
        routes = [
            Route("/", self._front),
            Route("/recordings/{name}", self._recording),
            WebSocketRoute("/live", self._live),
        ]
        return Guard(Starlette(routes=routes, lifespan=self._lifespan), token=token)

    def on_death(self, stop: Callable[[], None]) -> None:
        """Call `stop` when the simulation ends by itself."""
        self._stop = stop

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to tell
                loop.call_soon_threadsafe(self._wake)

        self._session.listen(wake)
        yield

    def _wake(self) -> None:
        if not self._session.alive:
            self._stop()
        for viewer in self._viewers:
            viewer.wake()

    async def _front(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers=HEADERS)

    async def _recording(self, request: Request) -> Response:
        name = request.path_params["name"]
        path = self._out / name
        if not re.fullmatch(r"episode-[\d-]+\.html", name) or not path.is_file():
            return PlainTextResponse("no such recording\n", 404)
        return FileResponse(path, headers=HEADERS)

    async def _live(self, stream: WebSocket) -> None:
        await stream.accept()
        if len(self._viewers) >= MOST_VIEWERS:
            await stream.close(1013, f"{MOST_VIEWERS} people are watching already")
            return
        viewer = Viewer()
        self._join(viewer)
        await stream.send_text(json.dumps(self._hello))
        talking = asyncio.create_task(self._talk(stream, viewer))
        try:
            await self._hear(stream, viewer)
        finally:
            talking.cancel()
            self._viewers.discard(viewer)
            self._wake()
            with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await talking

    def _join(self, viewer: Viewer) -> None:
        self._viewers.add(viewer)
        self._wake()

    async def _talk(self, stream: WebSocket, viewer: Viewer) -> None:
        while True:
            notes = await viewer.turn()
            now = self._session.snapshot
            assert now is not None  # a session that has started has one
            for said in notes or [viewer.state(now) | {"viewers": len(self._viewers)}]:
                await stream.send_text(json.dumps(said, separators=(",", ":")))

    async def _hear(self, stream: WebSocket, viewer: Viewer) -> None:
        loop = asyncio.get_running_loop()

        def answer(found: Answer) -> None:
            if found.error is not None:
                said = {"kind": "error", "text": found.error}
            elif found.saved is not None:
                said = {"kind": "saved", "name": found.saved.name, "path": str(found.saved)}
            else:
                return
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(viewer.note, said)

        while True:
            event = await stream.receive()
            if event["type"] == "websocket.disconnect":
                return
            try:
                command = parse(event.get("text") or "")
            except UserError as error:
                viewer.note({"kind": "error", "text": str(error)})
                continue
            if isinstance(command, Seen):
                viewer.seen()
            else:
                self._session.send(command, answer)


def watch(
    path: Path,
    *,
    plan: Plan | None = None,  # None: the run's own search
    data_path: Path | None = None,
    checkpoint: str = "latest",
    device: str = "cpu",
    host: str = "127.0.0.1",
    port: int = 8642,
    token: str | None = None,
    seed: int = 0,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the live page of a run until Ctrl-C; `ready` is told its address."""
    if not is_loopback(host):
        token = token or secrets.token_urlsafe(24)
    listening = _bind(host, port)
    loaded = load_checkpoint(path, checkpoint, device=device)
    if plan is not None:
        loaded = replace(loaded, config=loaded.config.model_copy(update={"plan": plan}))
    where = tasks_for(path, loaded.config, given=data_path)
    size = loaded.config.model.image_size
    data = Episodes.open(where, size=size).require(size)
    refuse_other(path, loaded.config, data)
    out = path / "watch"

    def build(interrupted: Callable[[], bool]) -> World:
        # A core is left to the server and the browser: two threads on two cores wait for each
        # other, and the demo's planner takes a third longer.
        torch.set_num_threads(max(1, cores() - 1))
        return World(loaded, data, seed=seed, interrupted=interrupted)

    session = Session(build, out=out)
    try:
        world = session.start()
        house = House(session, world, label=path.resolve().name, out=out)
        server = uvicorn.Server(
            uvicorn.Config(
                house.application(token=token),
                log_level="warning",
                ws_max_size=MOST_BYTES,
                ws_per_message_deflate=False,  # pictures are compressed already
                timeout_graceful_shutdown=2,
                server_header=False,
            )
        )
        house.on_death(lambda: setattr(server, "should_exit", True))
        listening.listen()  # from here on who comes is served, if only in a moment
        ready(_address(listening, host, token))
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
        if not session.alive:
            raise RuntimeError("the simulation ended by itself; see above")
    finally:
        session.close()
        listening.close()


def _bind(host: str, port: int) -> socket.socket:
    """Take the port first: finding it taken after the model has loaded is too late."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port"
        ) from error
    return listening


def _address(listening: socket.socket, host: str, token: str | None) -> str:
    port = listening.getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")
