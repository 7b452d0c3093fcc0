"""The page says what the files say, in one file, and says what is missing."""

import csv
import html.parser
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import binomtest

from report_runs import SMALL, make_run, tampered
from sdjepa.config import Config
from sdjepa.errors import UserError
from sdjepa.report import published
from sdjepa.report.compare import pair
from sdjepa.report.export import drawings, export
from sdjepa.report.figures import apart
from sdjepa.report.making import departures, minutes
from sdjepa.report.page import render, report
from sdjepa.report.picture import picture
from sdjepa.report.read import read_runs
from sdjepa.report.shape_figures import angle_map
from sdjepa.report.style import PALETTE, angle_colours, cyclic, to_bytes, to_svg
from sdjepa.report.tables import Table, comma_separated, latex, markdown, paired_table
from sdjepa.report.words import GLOSSARY
from sdjepa.statistics import mcnemar, wilson95


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [make_run(folder / "demo"), make_run(folder / "other", seed=5, solved=0.55)]


@pytest.fixture(scope="module")
def page(runs: list[Path]) -> str:
    return report(runs[:1], out=runs[0] / "report.html").read_text()


class _Checker(html.parser.HTMLParser):
    """Collects ids, addresses and whether every opened element is closed in order."""

    VOID = frozenset({"meta", "link", "img", "br", "hr", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.unlabelled: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        if tag not in self.VOID:
            self.open.append(tag)
        self.ids += [own["id"]] if "id" in own else []
        self.addresses += [own[name] for name in ("src", "href", "xlink:href") if name in own]
        if (tag == "svg" and not own.get("aria-label")) or (tag == "img" and "alt" not in own):
            self.unlabelled.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _check(text: str) -> _Checker:
    checker = _Checker()
    checker.feed(text)
    return checker


def test_the_page_is_well_formed_labelled_and_asks_nothing_of_the_network(page: str) -> None:
    checked = _check(page)
    assert checked.open == []
    assert len(checked.ids) == len(set(checked.ids))
    assert checked.unlabelled == []
    assert all(a.startswith(("data:", "#")) for a in checked.addresses), checked.addresses
    references = set(re.findall(r"url\(#([^)]+)\)", page)) | {
        address[1:] for address in checked.addresses if address.startswith("#")
    }
    assert references <= set(checked.ids)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_the_page_says_the_numbers_of_the_score_file(page: str, runs: list[Path]) -> None:
    (file,) = (runs[0] / "scores").glob("*.json")
    score = json.loads(file.read_text())
    solved = sum(task["outcome"] for task in score["tasks"])
    low, high = score["wilson95"]
    assert f"It reaches {solved} of {score['num_tasks']} goals" in page
    assert f"[{low:.1f}, {high:.1f}]" in page
    assert page.count('<li class="yes"') == solved
    assert "published" in page
    assert "64 instead of 224 pixels" in page  # a small model is not set beside large ones unsaid


@pytest.mark.parametrize("place", ["manifest.json", "data/dataset.json"])
def test_the_page_counts_the_episodes_that_were_there_not_those_of_the_recipe(
    runs: list[Path], tmp_path: Path, place: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    facts = {"num_episodes": 1234, "num_rows": 56789, "collect": {"steps": 77}}
    file = run / place
    file.parent.mkdir(exist_ok=True)
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | ({"data": facts} if place == "manifest.json" else facts)))
    text = report([run], out=tmp_path / "page.html").read_text()
    assert "1,234 instead of 10,000 episodes" in text
    assert re.search(r"frames</th><td class=n>56,789<", text)
    assert re.search(r"steps per episode</th><td class=n>77<", text)
    assert "(the recipe&#x27;s)" not in text


def test_a_model_of_published_size_made_otherwise_is_not_called_the_same_setting(
    runs: list[Path],
) -> None:
    score = read_runs(runs[:1])[0].scores[0]
    paper = Config()
    search = paper.plan.model_copy(update={"pull": 100.0})
    for config, departs in ((paper, ()), (paper.model_copy(update={"plan": search}), ("pull",))):
        said = replace(score, protocol="lewm", record={"config": config.model_dump()})
        assert published.differences(config, said) == ()
        found = published.otherwise(paper, said)
        assert [point.split(" ")[0] for point in found] == [f"plan.{name}" for name in departs]
    unknown = replace(score, record={"config": {"plan": {"no_such_setting": 1}}})
    assert published.otherwise(paper, unknown), "what cannot be read is not called the same"


def test_each_verdict_stands_before_its_figures(page: str) -> None:
    articles = re.findall(r'<article class="diagnostic">.*?</article>', page, flags=re.S)
    assert len(articles) == 3
    for article in articles:
        assert article.index('class="verdict') < article.index("<details") < article.index("<svg")


def test_two_pages_of_the_same_files_are_equal(page: str, runs: list[Path], tmp_path: Path) -> None:
    first = (runs[0] / "report.html").read_bytes()
    assert report(runs[:1], out=tmp_path / "again.html").read_bytes() == first


def test_a_section_without_files_names_the_command_that_makes_them(tmp_path: Path) -> None:
    bare = make_run(tmp_path / "bare", scored=False, compass=False)
    (bare / "metrics.jsonl").unlink()
    text = report([bare], out=tmp_path / "page.html").read_text()
    assert _check(text).open == []
    for command in ("sdjepa score bare", "sdjepa compass bare", "sdjepa train RECIPE"):
        assert f"<code>{command}" in text
    assert "<svg" not in text  # no empty panel


def test_runs_are_told_apart_by_the_shortest_name(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name / "run", scored=False, compass=False) for name in ("a", "b")]
    assert [run.label for run in read_runs(paths)] == ["a/run", "b/run"]
    assert [run.label for run in read_runs(paths[:1])] == ["run"]
    with pytest.raises(UserError, match="twice"):
        read_runs([paths[0], paths[0]])


def test_a_result_file_that_lacks_a_key_is_named_with_the_command(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", compass=False)
    (file,) = (run / "scores").glob("*.json")
    tampered(file, wilson95=None)
    with pytest.raises(UserError, match=r"o25.json lacks .*wilson95.*sdjepa score") as caught:
        report([run], out=tmp_path / "page.html")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "page.html").exists()


def test_floors_may_be_plain_rates_with_intervals_beside_them(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", compass=False)
    before = read_runs([run])[0].scores[0].floors
    (file,) = (run / "scores").glob("*.json")
    tampered(
        file,
        floors={name: rate.value for name, rate in before.items()},
        floors_wilson95={name: [rate.low, rate.high] for name, rate in before.items()},
    )
    assert read_runs([run])[0].scores[0].floors == before


def test_text_from_files_cannot_become_markup(runs: list[Path], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", scored=False, compass=False)
    (run / "compass").mkdir()
    shutil.copy(runs[0] / "compass" / "probe.json", run / "compass")
    tampered(run / "compass" / "probe.json", verdict="<script>alert(1)</script>: <b>x")
    text = report([run], out=tmp_path / "page.html").read_text()
    assert "<script>alert" not in text
    assert _check(text).open == []


def test_departures_are_what_was_set_and_nothing_else() -> None:
    assert departures(Config()) == []
    found = {name: (paper, ours) for name, paper, ours in departures(SMALL)}
    assert found["model.image_size"] == (224, 64)
    assert found["score.protocol"] == ("lewm", "strict")
    assert "model.k" not in found


@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 9), (9, 3), (5, 5), (0, 8)])
def test_mcnemar_is_the_exact_sign_test_of_the_tasks_that_differ(first: int, second: int) -> None:
    total = first + second
    expected = binomtest(first, total).pvalue if total else 1.0
    assert mcnemar(first, second) == pytest.approx(expected)


def test_the_paired_difference_is_that_of_shared_tasks(runs: list[Path]) -> None:
    first, second = (run.scores[0] for run in read_runs(runs))
    found = pair(first, second)
    assert found is not None
    assert found.num_shared == 50
    assert found.difference == pytest.approx(second.rate.value - first.rate.value)
    assert found.low < found.difference < found.high
    swapped = pair(second, first)
    assert swapped is not None
    assert (swapped.low, swapped.high) == pytest.approx((-found.high, -found.low))
    assert swapped.p_value == found.p_value


def test_wilson_solves_its_own_equation() -> None:
    z = 1.959963984540054
    for solved, total in ((0, 50), (41, 50), (200, 200)):
        for limit in (share / 100 for share in wilson95(solved, total)):
            gap = abs(solved / total - limit)
            assert gap == pytest.approx(z * np.sqrt(limit * (1 - limit) / total), abs=1e-12)


def test_colours_of_angles_wrap_and_never_jump() -> None:
    theta = np.linspace(-7, 7, 50)
    np.testing.assert_allclose(angle_colours(theta), angle_colours(theta + 2 * np.pi), atol=0.03)
    colours = cyclic()(np.arange(256))[:, :3]
    steps = np.abs(np.diff(np.concatenate([colours, colours[:1]]), axis=0)).max(axis=1)
    assert steps.max() < 0.03


def _luminance(colour: str) -> float:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("theme", [0, 1])
def test_every_text_colour_is_legible_in_both_themes(theme: int) -> None:
    paper = _luminance(PALETTE["paper"][theme])
    for name in ("ink", "muted", "blue", "vermilion", "green"):
        dim, bright = sorted([paper, _luminance(PALETTE[name][theme])])
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, name  # WCAG AA


def test_no_colour_of_a_figure_is_fixed_to_one_theme(page: str) -> None:
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.S))
    greys = {c for c in re.findall(r"#[0-9a-f]{6}", drawn) if c[1:3] == c[3:5] == c[5:7]}
    assert greys == set()  # black axes would vanish on a dark page
    assert "var(--ink)" in drawn


def test_the_glossary_explains_every_word_in_one_short_line() -> None:
    for written, meaning in GLOSSARY.values():
        assert meaning.endswith("."), written
        assert len(meaning) < 190, written


def test_two_figures_never_share_an_id() -> None:
    from sdjepa.report.course_figures import colour_wheel

    first, second = (to_svg(colour_wheel(), alt="wheel", name=name) for name in ("a", "b"))
    ids = [set(re.findall(r'id="([^"]+)"', text)) for text in (first, second)]
    assert not (ids[0] & ids[1])


def test_the_page_is_small(runs: list[Path], page: str) -> None:
    assert len(page) < 2_000_000


def test_sections_come_in_the_order_of_the_questions(page: str) -> None:
    places = [page.index(f'<section id="{name}"') for name in ("plan", "know", "made")]
    assert all(a < b for a, b in pairwise(places))


def test_minutes_are_the_logged_frames_over_their_rates(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", scored=False, compass=False)
    lines = [{"step": 50, "loss": 1.0, "frames_per_second": 64.0}, {"step": 150, "loss": 1.0}]
    lines += [{"step": 250, "loss": 1.0, "frames_per_second": 128.0}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    # 64 windows of 4 frames a step: 200 s for the first 50 steps, 400 s for the next 200.
    assert minutes(read_runs([run])[0]) == pytest.approx(10.0)


def test_the_picture_needs_a_score_and_a_compass(runs: list[Path], tmp_path: Path) -> None:
    png = picture(runs[0], tmp_path / "demo.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    bare = make_run(tmp_path / "bare", scored=False, compass=False)
    with pytest.raises(UserError, match="sdjepa score"):
        picture(bare, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_every_figure_and_table_becomes_files(runs: list[Path], tmp_path: Path) -> None:
    read = read_runs(runs)
    pictures = tmp_path / "figures"
    # One drawing is enough to see files appear; drawing all of them is the page's own test.
    name, drawn = next(iter(drawings(read)))
    assert name == "success-tworoom"
    assert to_bytes(drawn, "png", dpi=60).startswith(b"\x89PNG")
    assert to_bytes(drawn, "pdf").startswith(b"%PDF")
    slim = [replace(run, compass=(), metrics=(), scores=()) for run in read]
    assert {path.suffix for path in export(slim, pictures)} == {".md", ".csv", ".tex"}


def test_of_many_runs_the_page_tells_the_best_and_worst_and_folds_other_pairs(
    runs: list[Path],
) -> None:
    better, worse = (replace(run, compass=(), metrics=()) for run in read_runs(runs))
    assert worse.headline is not None
    assert better.headline is not None
    assert worse.headline.num_solved < better.headline.num_solved
    three = [replace(better, label="a"), replace(worse, label="b"), replace(better, label="c")]
    page = render([*three, replace(worse, label="d", scores=())])
    assert all(f"<b>{name}</b> solves" in page for name in "abc")
    page = render([*three, replace(worse, label="d")])
    assert page.count("</b> solves") == 1
    assert "<b>a</b> solves" in page
    assert ", the most of 4, and <b>d</b>" in page
    shown, folded = page.split("The other 3 pairs")
    assert "d against a" in shown
    assert "d against c" in folded
    assert "d against c" not in shown


def test_the_three_forms_of_a_table_hold_the_same_numbers(runs: list[Path]) -> None:
    table = paired_table(read_runs(runs))
    rows = list(csv.reader(comma_separated(table).splitlines()))
    assert rows[0] == list(table.head)
    first, second = (run.scores[0].rate.value for run in read_runs(runs))
    assert float(rows[1][4]) == pytest.approx(second - first, abs=0.05)
    assert markdown(table).count("\n") == 3
    assert "other against demo" in latex(table)
    assert latex(Table("x", ("a_b", "%"), (("c&d", "\u22121"),))).count("\\\\\n") == 2
    assert r"a\_b & \%" in latex(Table("x", ("a_b", "%"), ()))


def test_an_unknown_diagnostic_still_shows_its_numbers(runs: list[Path], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", scored=False, compass=False)
    (run / "compass").mkdir()
    shutil.copy(runs[0] / "compass" / "probe.json", run / "compass" / "new.json")
    tampered(run / "compass" / "new.json", diagnostic="new", results={"how_far": 0.321})
    text = report([run], out=tmp_path / "page.html").read_text()
    assert "how far" in text
    assert "0.321" in text


def test_the_map_of_angles_puts_x_across_and_y_down() -> None:
    theta = np.full((3, 2), np.nan)
    theta[2, 0] = 0.0  # the largest x, the smallest y: right, and at the top of a picture
    figure = angle_map(theta, strength=np.ones((3, 2)), edges=(0, 3, 0, 2), down=True)
    figure.set_facecolor("white")
    image = matplotlib.image.imread(io.BytesIO(to_bytes(figure, "png", dpi=50)), format="png")
    height, width = image.shape[:2]
    saturation = np.ptp(image[..., :3], axis=-1)
    rows, columns = np.nonzero(saturation > 0.2)
    assert columns.mean() > 0.6 * width
    assert rows.mean() < 0.4 * height


def test_the_film_of_an_edit_shows_one_picture_per_step_and_marks_the_cut() -> None:
    from PIL import Image

    from sdjepa.report.animation import BORDER_FRAMES, MARGIN, film
    from sdjepa.scoring.album import png

    steps, cut = 12, 5
    grey = [png(np.full((16, 16, 3), 10 * step, np.uint8)) for step in range(steps)]
    theta = np.linspace(0, 1, steps)
    edit = {"source": [0] * cut + [1] * (steps - cut), "row": list(range(steps)), "cuts": [cut]}
    edit["theta"] = np.where(np.arange(steps) < cut, theta, theta + 2).tolist()
    pair = {"modes": {"splice": edit}, "theta_clean": theta.tolist()}
    pair["frames"] = {"own": grey, "donor": grey[::-1]}
    with Image.open(io.BytesIO(film(pair, "splice"))) as opened:
        assert opened.n_frames == steps
        marked = []
        for step in range(steps):
            opened.seek(step)
            red, _, blue = opened.convert("RGB").getpixel((MARGIN - 2, MARGIN + 50))
            marked.append(red > blue + 50)
    assert marked == [cut <= step < cut + BORDER_FRAMES for step in range(steps)]


def test_a_view_of_points_keeps_what_lies_across_the_line_of_sight() -> None:
    from sdjepa.report.shape_figures import seen_from

    above = seen_from(np.array([[0.0, 0.0, 1.0]]), elevation=0)[0]
    assert above == pytest.approx([0, 1])
    along = np.array([[np.cos(0.3), np.sin(0.3), 0.0]])
    ahead = seen_from(along, elevation=0, azimuth=np.degrees(0.3))[0]
    assert ahead == pytest.approx([0, 0])


def test_a_report_needs_no_torch():
    code = "import sys, sdjepa.report.page; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"  # which alone takes as long to load as a page to draw


def test_numbers_in_a_figure_are_not_cut(tmp_path: Path) -> None:
    figure = Figure(figsize=(1, 1))
    figure.text(0.123456, 0.5, "0.00312")
    drawn = to_svg(figure, alt="0.98765", name="cut")
    assert "0.00312" in drawn  # what is read
    assert not re.search(r'[xd]="[^"]*\d\.\d{3}', drawn)  # where it stands


def test_words_beside_curves_keep_their_distance_and_order() -> None:
    assert apart([50.0, 90.0]) == [50.0, 90.0]
    placed = apart([86.0, 85.0, 20.0])
    assert placed == [86.0, 76.0, 20.0]


def test_the_headline_is_the_runs_own_search_unless_another_is_selected(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    [file] = (run / "scores").glob("*.json")
    record = json.loads(file.read_text())
    plan = read_runs([run])[0].config.plan.model_dump()
    for name, search in (
        ("aa", plan | {"pull": 7.0}),
        (file.stem, plan),
        ("zz", plan | {"effort": 1.0}),
    ):
        said = record | {"config": {**record.get("config", {}), "plan": search}}
        (run / "scores" / f"{name}.json").write_text(json.dumps(said))
    for select, shown in ((None, file.stem), ("zz", "zz"), ("aa", "aa")):
        headline = read_runs([run], select=select)[0].headline
        assert headline is not None
        assert headline.name == shown
    with pytest.raises(UserError, match="no score named like"):
        read_runs([run], select="nothing")
