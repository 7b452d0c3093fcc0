"""The page in a real browser: no complaint, no request, nothing empty, one slider moves all."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from report_runs import make_run
from sdjepa.report.page import report
from sdjepa.runs import read_json

CHROMIUM = Path("/usr/bin/chromium")
sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs /usr/bin/chromium")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "demo", whole=True)


@pytest.fixture(scope="module")
def address(run: Path) -> str:
    other = make_run(run.parent / "other", seed=2, solved=0.5)
    return report([run, other], out=run / "report.html").as_uri()


@pytest.fixture
def page(browser: "sync_api.Browser", address: str) -> Iterator["sync_api.Page"]:
    """The open page; any message on its console or any request but the file itself is a failure."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    opened = context.new_page()
    troubles: list[str] = []
    opened.on("console", lambda message: troubles.append(message.text))
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on(
        "request",
        lambda request: (
            None
            if request.url == address or request.url.startswith("data:")
            else troubles.append(request.url)
        ),
    )
    opened.goto(address)
    yield opened
    context.close()
    assert troubles == []


def test_nothing_overflows_a_phone_and_no_figure_is_empty(page: "sync_api.Page") -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    empty = page.evaluate(
        """() => [...document.querySelectorAll('figure svg')].filter((svg) => {
             if (getComputedStyle(svg.parentElement).display === 'none') return false;
             const box = svg.getBoundingClientRect();
             const drawn = svg.querySelectorAll('path, line, polyline, circle, use, image').length;
             return box.width < 40 || box.height < 20 || drawn < 2;
           }).map((svg) => svg.getAttribute('aria-label'))"""
    )
    # A tile that shows a single picture holds one image and nothing else.
    assert [name for name in empty if name not in ("The goal it is shown", "What it sees")] == []
    assert page.locator("section h2").count() == 3


def test_dial_and_traces_agree_with_the_files_at_three_steps(
    page: "sync_api.Page", run: Path
) -> None:
    course = read_json(run / "compass" / "course.json")["results"]["episodes"]
    player = page.locator(".player").first
    chosen = player.locator("option").first.inner_text()
    episode = next(e for e in course if f"Episode {e['episode']}" == chosen)
    slider = player.locator("input[type=range]")
    for row in (0, 27, len(episode["theta"]) - 1):
        slider.fill(str(row))
        shown = player.evaluate("(p) => ({...p.dataset})")
        assert float(shown["theta"]) == pytest.approx(episode["theta"][row], abs=1e-3)
        assert float(shown["radius"]) == pytest.approx(episode["radius"][row], abs=1e-3)
        needle = player.locator(".needle")
        x, y = (float(needle.get_attribute(name) or "nan") for name in ("x2", "y2"))
        turn = math.atan2(y, x) - episode["theta"][row]
        assert math.cos(turn) == pytest.approx(1, abs=1e-5)
        written = player.locator(".trace b").first.inner_text().replace("\u2212", "-")
        assert float(written) == pytest.approx(episode["theta"][row], abs=0.006)


def test_the_player_is_moved_by_the_keyboard_and_switches_to_an_edit(page: "sync_api.Page") -> None:
    player = page.locator(".player").first
    player.locator("input[type=range]").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert player.get_attribute("data-row") == "3"
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('.player').dataset.row > 4")
    page.keyboard.press("Space")
    edit = player.locator("optgroup[label^=Edited] option").first.get_attribute("value")
    player.locator("select").select_option(edit)
    assert player.locator(".trace .mark").count() > 0
    planned = player.locator("optgroup[label^=Planned] option")
    player.locator("select").select_option(planned.nth(1).get_attribute("value"))
    for row, theta in ((0, 3.0), (9, 3.0), (10, -3.0), (29, -2.5)):
        player.locator("input[type=range]").fill(str(row))
        assert float(player.get_attribute("data-theta") or "nan") == theta
    # The traced angle passes its seam without a jump: 3.0 is followed by 2 pi - 2.5.
    written = player.locator(".trace b").first.inner_text()
    assert float(written) == pytest.approx(2 * math.pi - 2.5, abs=0.006)
    player.locator("select").select_option(planned.first.get_attribute("value"))
    source = player.locator("image").first.get_attribute("href") or ""
    assert source.startswith("data:image/png;base64,iVBOR")
    assert player.locator(".needle").count() == 0  # an old score has no recorded angle


def test_the_theme_follows_the_button_and_paper_is_always_light(page: "sync_api.Page") -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(colour)
    page.get_by_role("button", name="Use the dark theme").click()
    assert page.evaluate(colour) != before
    page.emulate_media(media="print")
    assert page.evaluate(colour) == before


def test_printing_opens_the_closed_figures(page: "sync_api.Page") -> None:
    page.evaluate(
        "window.addEventListener('beforeprint', () => {"
        " window.opened = document.querySelectorAll('details:not([open])').length; })"
    )
    document = page.pdf()
    assert document.startswith(b"%PDF")
    assert page.evaluate("window.opened") == 0
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") > 0


def test_the_player_survives_text_that_looks_like_markup(run: Path) -> None:
    text = (run / "report.html").read_text()
    block = text.split('<script type="application/json">')[1].split("</script>")[0]
    assert json.loads(block)["items"]
