"""The live page in a real browser, served as to strangers: token, teleport, a dropped socket."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

CHROMIUM = Path("/usr/bin/chromium")
sync_api = pytest.importorskip("playwright.sync_api")
needs_chromium = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs /usr/bin/chromium")


@pytest.fixture(scope="module")
def address(
    trained: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server bound to every address; at the end it is asked to go as Ctrl-C asks."""
    run = tmp_path_factory.mktemp("watched") / "run"
    shutil.copytree(trained, run, symlinks=True)
    words = ["watch", run, "--data", tiny_data, "--host", "0.0.0.0", "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, "-m", "sdjepa", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert server.stdout is not None
    said = server.stdout.readline().strip()
    assert said.startswith("http://0.0.0.0:"), server.communicate(timeout=20)
    yield said.replace("0.0.0.0", "127.0.0.1")
    server.send_signal(signal.SIGINT)
    _, trouble = server.communicate(timeout=20)
    assert server.returncode == 0
    assert trouble == ""


@pytest.fixture
def page(browser: "sync_api.Browser", address: str) -> Iterator["sync_api.Page"]:
    """The live page; a complaint on its console or a request to elsewhere is a failure."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    troubles: list[str] = []
    opened.on("console", lambda message: troubles.append(message.text))
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    origin = address.split("?")[0]
    context.on(
        "request",
        lambda request: (
            None if request.url.startswith((origin, "data:")) else troubles.append(request.url)
        ),
    )
    opened.goto(address)
    opened.wait_for_selector(".live[data-row]")
    opened.get_by_role("button", name="Next").click()
    yield opened
    context.close()
    assert troubles == []


def live(page: "sync_api.Page") -> dict[str, str]:
    return page.locator(".live").evaluate("(element) => ({...element.dataset})")


def until(page: "sync_api.Page", condition: str, timeout_ms: int = 15_000) -> None:
    """Wait for a condition on `d`, the page's data."""
    page.wait_for_function(
        f"() => {{ const d = document.querySelector('.live').dataset; return {condition}; }}",
        timeout=timeout_ms,
    )


@needs_chromium
def test_a_teleport_shows_on_the_compass_within_a_second(page: "sync_api.Page") -> None:
    page.get_by_role("button", name="Run", exact=True).click()
    until(page, "d.row >= 6")
    page.get_by_role("button", name="Pause").click()
    until(page, "d.running === 'false'")
    theta = page.evaluate("() => document.querySelector('.trace b').textContent")
    before = live(page)
    page.get_by_role("button", name="Teleport").click()
    until(page, f"d.marks === 'teleport' && d.theta !== '{before['theta']}'", 1_000)
    after = live(page)
    assert int(after["row"]) == int(before["row"]) + 1
    needle = page.locator(".needle")
    x, y = (float(needle.get_attribute(name) or "nan") for name in ("x2", "y2"))
    assert math.cos(math.atan2(y, x) - float(after["theta"])) == pytest.approx(1, abs=1e-6)
    shown = page.locator(".trace b").first.inner_text()
    assert shown != theta
    assert float(shown.replace("\u2212", "-")) == pytest.approx(float(after["theta"]), abs=0.006)
    assert page.locator(".trace .mark").count() == page.locator(".trace").count()


@needs_chromium
def test_a_dropped_socket_is_taken_up_again(page: "sync_api.Page", address: str) -> None:
    held: list = []

    def proxy(route) -> None:
        held.append(route)
        route.connect_to_server()

    page.route_web_socket(lambda url: "/live" in url, proxy)
    page.goto(address)
    page.wait_for_selector(".link[data-link=open]")
    held[0].close(code=1011, reason="cut")
    page.wait_for_selector(".link[data-link=lost]")
    page.wait_for_selector(".link[data-link=open]")
    assert len(held) == 2
    row = live(page)["row"]
    page.keyboard.press(".")
    until(page, f"Number(d.row) === {row} + 1")


@needs_chromium
def test_a_click_aims_and_two_viewers_see_the_same(
    page: "sync_api.Page", browser: "sync_api.Browser", address: str
) -> None:
    second = browser.new_page()
    second.goto(address)
    second.wait_for_selector(".live[data-row]")
    until(page, "document.querySelector('.link').textContent === '2 watching'")
    picture = page.locator(".scene svg")
    box = picture.bounding_box()
    assert box is not None
    picture.click(position={"x": box["width"] * 0.25, "y": box["height"] * 0.75})
    until(second, "d.marks === 'goal moved'")
    star = second.locator(".scene .goal")
    assert float(star.get_attribute("x") or 0) == pytest.approx(56, abs=0.5)
    page.locator("#solver").select_option("icem")
    page.locator("#cost").select_option("angular")
    second.wait_for_function("() => !document.querySelector('#gamma').disabled")
    assert second.locator("#solver").input_value() == "icem"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Step").click()
    until(second, "d.row >= 1")
    assert second.locator(".scene .final").count() > 0
    page.locator("#cost").select_option("content")
    second.close()


@needs_chromium
def test_a_saved_film_opens_in_the_player(page: "sync_api.Page") -> None:
    for _ in range(3):
        page.get_by_role("button", name="Step").click()
    until(page, "d.row >= 3")
    theta = float(live(page)["theta"])
    page.get_by_role("button", name="Save").click()
    with page.expect_popup() as opening:
        page.get_by_role("link", name="open it").click()
    film = opening.value
    film.locator("input[type=range]").fill("3")
    assert film.locator(".player").get_attribute("data-row") == "3"
    shown = float(film.locator(".player").get_attribute("data-theta") or "nan")
    assert shown == pytest.approx(theta, abs=1e-3)
    assert film.locator(".needle").count() == 1
    film.close()


@needs_chromium
def test_nothing_overflows_a_phone_and_the_theme_turns(page: "sync_api.Page") -> None:
    colour = "() => getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(colour)
    page.get_by_role("button", name="Use the dark theme").click()
    assert page.evaluate(colour) != before
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    scene, desk = (page.locator(name).bounding_box() for name in (".scene svg", ".desk"))
    assert scene is not None
    assert desk is not None
    assert scene["y"] < desk["y"]
    # Every number says on hover what it means.
    assert page.locator(".trace:not([title])").count() == 0
    assert page.locator(".desk button:not([title]), .desk label:not([title])").count() == 0


def test_without_the_token_nothing_is_served(address: str) -> None:
    bare, _, token = address.partition("?token=")
    for path in ("", "recordings/episode-1.html"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(bare + path, timeout=10)
        assert refused.value.code == 401
    live_address = bare.replace("http", "ws") + "live"
    with pytest.raises(InvalidStatus):
        connect(live_address).close()
    with pytest.raises(InvalidStatus):
        connect(f"{live_address}?token={token}", origin="http://evil.example").close()  # type: ignore[arg-type]
    asked = urllib.request.Request(bare, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert b"SD-JEPA live" in answer.read()


def test_nonsense_does_not_stop_the_server(address: str) -> None:
    bare, _, token = address.partition("?")
    live_address = f"{bare.replace('http', 'ws')}live?{token}"

    def next_of(stream, kind: str) -> dict:
        while True:
            said = json.loads(stream.recv(timeout=10))
            if said["kind"] == kind:
                return said

    with connect(live_address) as stream:
        next_of(stream, "state")
        for nonsense in ("{", b"\x00\xff", '{"do": "fly"}', '{"do":"aim","x":1}', "[[[["):
            stream.send(nonsense)
            assert "not understood" in next_of(stream, "error")["text"]
        stream.send('{"do": "task", "number": 999}')
        assert "tasks 0 to" in next_of(stream, "error")["text"]
    with connect(live_address) as stream:
        stream.send("x" * 100_000)  # beyond what is read: this socket is closed, no other
        with pytest.raises(ConnectionClosedError, match="1009"):
            list(stream)
    with connect(live_address) as stream:
        assert next_of(stream, "hello")["label"] == "run"
