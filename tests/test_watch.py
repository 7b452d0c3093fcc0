"""The live world without a browser: what is shown is what is so, and nothing piles up."""

import asyncio
import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sdjepa.data.episodes import Episodes
from sdjepa.envs.base import make
from sdjepa.errors import UserError
from sdjepa.model.split import angle
from sdjepa.train.checkpoint import load_checkpoint
from sdjepa.watch import film as films
from sdjepa.watch import search
from sdjepa.watch.guard import Guard
from sdjepa.watch.messages import Aim, Seen, parse
from sdjepa.watch.record import film_item
from sdjepa.watch.session import Answer, Session
from sdjepa.watch.viewer import UNDER_WAY, Viewer
from sdjepa.watch.world import REVERSED, World


def make_world(
    run: Path, data: Path, *, interrupted: Callable[[], bool] = lambda: False, seed: int = 0
) -> World:
    return World(load_checkpoint(run), Episodes.open(data), seed=seed, interrupted=interrupted)


@pytest.fixture
def world(trained: Path, tiny_data: Path) -> World:
    return make_world(trained, tiny_data)


def places(world: World) -> np.ndarray:
    return np.array([moment.place for moment in world.film.moments])


def test_the_same_seed_gives_the_same_film(trained: Path, tiny_data: Path):
    shown = []
    for _ in range(2):
        world = make_world(trained, tiny_data, seed=3)
        for _ in range(7):
            world.step()
        world.teleport()
        shown.append(places(world))
    assert np.array_equal(*shown)


def test_surprise_is_the_error_of_the_teacher_forced_prediction(world: World):
    skip = world.checkpoint.config.model.frame_skip
    for _ in range(4 * skip):
        world.step()
    moments = world.film.moments
    for offset in (0, 2):  # any row may be taken for the first of a block
        rows = list(range(offset, len(moments), skip))
        latents = torch.stack([moments[row].latent for row in rows])
        acted = np.stack([moment.action for moment in moments[offset + 1 :]])
        blocks = world._planner.blocks(acted[: (len(rows) - 1) * skip][None])
        with torch.no_grad():
            foreseen = world.checkpoint.model.teacher_forced(latents[None], blocks)[0]
        errors = (latents[1:] - foreseen).square().sum(-1)
        shown = [moments[row].surprise for row in rows[1:]]
        assert shown == pytest.approx(errors.tolist(), rel=1e-4)
    assert moments[skip - 1].surprise is None  # nobody foresaw the first block


def test_a_teleport_shows_another_state_and_drops_the_plan(world: World):
    for _ in range(3):
        world.step()
    before = world.film.moments[-1]
    world.teleport()
    after = world.film.moments[-1]
    assert np.linalg.norm(np.subtract(after.place, before.place)) > 20
    assert [mark.row for mark in world.film.marks] == [4]
    assert world.plan_due
    small = np.array(Image.open(io.BytesIO(after.seen)))
    read = world._planner.read(small[None])
    assert after.theta == pytest.approx(float(angle(read.progress)[0]), abs=1e-6)
    goal = np.asarray(world.film.goals[-1].place)
    assert after.distance == pytest.approx(np.linalg.norm(np.subtract(after.place, goal)), abs=1e-4)


def test_reverse_shows_the_last_frames_backwards_and_then_goes_on(world: World):
    for _ in range(REVERSED + 2):
        world.step()
    before = places(world)
    world.reverse()
    while world.rewinding:
        world.step()
    back = places(world)[len(before) :]
    assert np.array_equal(back, before[-2 : -REVERSED - 2 : -1])
    pictures = [moment.picture for moment in world.film.moments]
    assert pictures[len(before)] == pictures[len(before) - 2]
    world.step()
    assert len(world.film.moments) == len(before) + REVERSED + 1


def test_a_click_moves_the_goal_out_of_the_wall_and_the_planner_is_shown_it(world: World):
    world.step()
    old = world.film.goals[-1]
    world.aim(world.env.WALL_X + 1.0, 160.0)  # type: ignore[attr-defined]
    goal = world.film.goals[-1]
    assert goal.place[1] == 160.0
    assert goal.place[0] > world.env.WALL_X + 10  # type: ignore[attr-defined]
    assert goal.picture != old.picture
    assert world.env.distance() == pytest.approx(
        np.linalg.norm(np.subtract(world.film.moments[-1].place, goal.place)), abs=1e-4
    )
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(goal.picture))), world._goal_frame)


def test_the_goal_of_the_push_task_moves_with_its_agent():
    env = make("pusht")
    env.reset(np.random.default_rng(0))
    row = {"state": np.array([200.0, 210.0, 250.0, 260.0, 1.0, 3.0, 4.0])}
    moved = env.goal_at(row, np.array([300.0, 200.0]))["state"]
    assert moved.tolist() == [250.0, 150.0, 300.0, 200.0, 1.0, 0.0, 0.0]
    assert env.agent_at(row, np.array([300.0, 200.0]))["state"][2:5].tolist() == [250, 260, 1]
    with pytest.raises(UserError, match="cannot point"):
        make("reacher").goal_at({}, np.zeros(2))


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_drawn_candidates_are_where_their_actions_really_lead(
    world: World, seconds: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(search, "SECONDS", seconds)
    world.step()
    sketch = world.sketch
    assert sketch is not None
    start = world.film.moments[0]
    env = make(world.data.env)
    for which, paths in ((0, sketch.first), (-1, sketch.last)):
        actions = world._planner.candidates(which, len(paths))
        most = {0: search.FIRST_SHOWN, -1: search.LAST_SHOWN}[which]
        assert len(paths) == (most if seconds else 1)
        for path, acted in zip(paths, actions, strict=True):
            env.set_state(start.columns)
            walked = [env.observe()["proprio"]]
            for action in acted:
                env.step(action)
                walked.append(env.observe()["proprio"])
            assert np.allclose(path, walked, atol=0.051)
    tried, costs = world._planner._watched.rounds[-1]
    best = world._planner.raw_actions(tried[0][costs[0].argmin()][None])[0]
    assert np.array_equal(world._planner.candidates(-1, 1)[0], best)


def test_a_new_task_is_not_begun_with_the_old_tasks_plan(world: World):
    world.step()
    assert not world.plan_due
    world.begin(1)
    assert world.sketch is None
    world.step()
    assert world.film.plans == [0]
    start, goal = world.tasks[1].rows(world.data)
    assert np.array_equal(world.film.moments[0].place, world.data.row(start)["proprio"])
    assert np.array_equal(world.film.goals[0].place, world.data.row(goal)["proprio"])


def test_a_search_that_is_interrupted_changes_nothing(trained: Path, tiny_data: Path):
    wanted = threading.Event()
    world = make_world(trained, tiny_data, interrupted=wanted.is_set)
    wanted.set()
    assert not world.step()
    assert len(world.film.moments) == 1
    wanted.clear()
    assert world.step()
    assert world.film.plans == [0]


def test_other_settings_change_the_plan_and_only_the_plan(world: World):
    world.step()
    before = places(world)
    world.change(world.settings.model_copy(update={"solver": "icem", "replan": 1}))
    assert np.array_equal(places(world), before)
    world.step()
    assert world.film.plans == [0, 1]
    bare = world.checkpoint.config.model.model_copy(update={"k": 0})
    config = world.checkpoint.config.model_copy(update={"model": bare})
    world.checkpoint = type(world.checkpoint)(
        world.checkpoint.model, config, world.checkpoint.stats, 0, world.checkpoint.path
    )
    with pytest.raises(UserError, match="progress part"):
        world.change(world.settings.model_copy(update={"cost": "angular"}))


def test_a_film_ends_before_memory_does(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(films, "MOST_ROWS", 3)
    world.step()
    world.step()
    for act in (world.step, world.teleport, world.swap):
        with pytest.raises(UserError, match="full"):
            act()
    assert len(world.film.moments) == 3


def test_a_recorded_film_says_what_was_shown(world: World):
    for _ in range(6):
        world.step()
    world.teleport()
    item = film_item(world.film, extent=world.env.extent, frame_skip=5)
    assert len(item["path"]) == len(item["frames"]) == len(item["theta"]) == 8
    surprise = next(trace for trace in item["traces"] if trace["name"] == "surprise of the latent")
    assert surprise["first"] == 5
    assert len(surprise["values"]) == 3
    assert surprise["values"][-1] == pytest.approx(world.film.moments[-1].surprise, abs=1e-4)
    assert item["marks"] == [{"row": 7, "kind": "cut", "label": "teleport"}]


# --- messages


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"do": "launch"}',
        '{"do": "aim", "x": 1}',
        '{"do": "aim", "x": NaN, "y": 1}',
        '{"do": "aim", "x": 1e9, "y": 1}',
        '{"do": "aim", "x": "1", "y": 1}',
        '{"do": "run", "rm": "-rf"}',
        '{"do": "change", "solver": "magic"}',
        '{"do": "change", "gamma": -1}',
        '{"do": "change", "pace": 1000000}',
        '{"do": "task", "number": -1}',
        '{"do": "task", "number": 1.5}',
        "\ud800",
        "[" * 2000,
    ],
)
def test_a_malformed_message_is_refused_in_one_line(text: str):
    with pytest.raises(UserError, match="not understood") as refused:
        parse(text)
    assert "\n" not in str(refused.value)


def test_messages_mean_what_they_say():
    assert parse('{"do": "aim", "x": 3, "y": 4.5}') == Aim(do="aim", x=3, y=4.5)
    assert isinstance(parse('{"do": "seen"}'), Seen)


# --- the session


@pytest.fixture
def session(trained: Path, tiny_data: Path, tmp_path: Path) -> Iterator[Session]:
    made = Session(
        lambda interrupted: make_world(trained, tiny_data, interrupted=interrupted), out=tmp_path
    )
    made.start()
    yield made
    made.close()
    assert not made.alive


def ask(session: Session, text: str) -> Answer:
    done, answers = threading.Event(), []

    def reply(answer: Answer) -> None:
        answers.append(answer)
        done.set()

    command = parse(text)
    assert not isinstance(command, Seen)
    session.send(command, reply)
    assert done.wait(20)
    return answers[0]


def wait_until(session: Session, true: Callable[[], bool]) -> None:
    """Until `true`, asked again whenever the session has news."""
    news = threading.Event()
    session.listen(news.set)
    for _ in range(2000):
        if true():
            return
        news.wait(0.05)
        news.clear()
    pytest.fail("the session never got there")


def test_a_session_runs_to_the_budget_then_pauses_or_goes_on(session: Session):
    def now():
        assert session.snapshot is not None
        return session.snapshot

    assert ask(session, '{"do": "change", "pace": 60}') == Answer()
    ask(session, '{"do": "run"}')
    wait_until(session, lambda: not now().running)
    ended = now()
    assert ended.rows - 1 == ended.film.solved_at or ended.rows - 1 == ended.film.budget
    ask(session, '{"do": "change", "endless": true}')
    ask(session, '{"do": "task"}')
    ask(session, '{"do": "run"}')
    wait_until(session, lambda: now().film.number >= ended.film.number + 2)
    ask(session, '{"do": "pause"}')
    assert not now().running


def test_a_refused_command_is_answered_and_the_session_lives(session: Session):
    assert "backwards yet" in (ask(session, '{"do": "reverse"}').error or "")
    assert "tasks 0 to" in (ask(session, '{"do": "task", "number": 999}').error or "")
    assert "blocks long" in (ask(session, '{"do": "change", "replan": 20}').error or "")
    assert ask(session, '{"do": "step"}') == Answer()
    assert session.snapshot is not None
    assert session.snapshot.rows == 2
    saved = ask(session, '{"do": "save"}').saved
    assert saved is not None
    assert "<html" in saved.read_text()


def test_a_full_film_ends_the_run_and_not_the_session(
    session: Session, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(films, "MOST_ROWS", 6)
    for text in ('{"do": "step"}', '{"do": "step"}', '{"do": "step"}', '{"do": "reverse"}'):
        ask(session, text)
    wait_until(session, lambda: session.snapshot is not None and session.snapshot.rows == 6)
    assert ask(session, '{"do": "run"}') == Answer()
    assert "full" in (ask(session, '{"do": "step"}').error or "")
    assert ask(session, '{"do": "task"}') == Answer()
    ask(session, '{"do": "run"}')
    wait_until(session, lambda: session.snapshot is not None and session.snapshot.rows == 6)
    wait_until(session, lambda: session.snapshot is not None and not session.snapshot.running)
    assert session.alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_world_ends_the_session_and_everybody_is_told(
    trained: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    session = Session(lambda interrupted: make_world(trained, tiny_data), out=tmp_path)
    session.start()
    told = threading.Event()
    session.listen(lambda: None if session.alive else told.set())
    monkeypatch.setattr(World, "step", lambda self: 1 / 0)
    session.send(parse('{"do": "run"}'), lambda answer: None)  # type: ignore[arg-type]
    assert told.wait(20)
    session.close()


def test_a_world_that_cannot_be_made_is_refused_where_it_is_asked_for(
    trained: Path, tmp_path: Path
):
    def build(interrupted: Callable[[], bool]) -> World:
        raise UserError("no such world")

    with pytest.raises(UserError, match="no such world"):
        Session(build, out=tmp_path).start()


# --- viewers


def test_a_slow_viewer_misses_pictures_but_no_number(session: Session):
    async def watched() -> list[dict]:
        viewer, told = Viewer(), []
        for step in range(8):
            viewer.wake()
            try:
                notes = await asyncio.wait_for(viewer.turn(), 0.01)
            except TimeoutError:
                notes = None
            if notes is not None:
                assert session.snapshot is not None
                told.append(viewer.state(session.snapshot))
            ask(session, '{"do": "step"}')
            if step == 6:
                viewer.seen()
        return told

    told = asyncio.run(watched())
    assert len(told) == UNDER_WAY + 1  # the rest was not queued: it was never made
    assert [state["row"] for state in told] == [0, 1, 7]
    rows = [value for state in told for value in state["rows"]["theta"]]
    assert session.snapshot is not None
    assert rows == [round(m.theta or 0, 4) for m in session.snapshot.film.moments[:8]]
    assert told[1]["first"] == 1
    assert "goal" in told[0]
    assert "goal" not in told[1]  # it has not changed
    json.dumps(told, allow_nan=False)


def test_notes_pass_a_viewer_who_does_not_draw():
    async def noted() -> list[dict]:
        viewer = Viewer()
        for _ in range(UNDER_WAY):
            viewer.wake()
            assert await viewer.turn() == []
        viewer.wake()
        for number in range(10):
            viewer.note({"number": number})
        return await asyncio.wait_for(viewer.turn(), 1)

    assert [note["number"] for note in asyncio.run(noted())] == [6, 7, 8, 9]


# --- the door


def knock(*, token: str | None, kind: str = "http", query: str = "", **headers: str) -> int | str:
    """What the guard makes of a request: a status, a closed socket's code, or "in"."""
    found: list[int | str] = []

    async def inside(scope, receive, send) -> None:
        found.append("in")

    async def send(message) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])
        if message["type"] == "websocket.close":
            found.append(message["code"])

    async def receive():
        return {"type": "websocket.connect"}

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "headers": raw, "query_string": query.encode()}
    asyncio.run(Guard(inside, token=token)(scope, receive, send))
    assert len(found) == 1
    return found[0]


def test_this_machine_needs_no_token_but_another_site_may_not_borrow_it():
    at_home = {"host": "127.0.0.1:8642"}
    assert knock(token=None, **at_home) == "in"
    assert knock(token=None, host="[::1]:8642") == "in"
    assert knock(token=None, host="evil.example:8642") == 403  # a name that was rebound to us
    assert knock(token=None, kind="websocket", origin="http://127.0.0.1:8642", **at_home) == "in"
    assert knock(token=None, kind="websocket", **at_home) == "in"
    assert knock(token=None, kind="websocket", origin="https://evil.example", **at_home) == 1008


def test_elsewhere_nothing_is_served_without_the_token():
    away = {"host": "10.0.0.7:8642"}
    for kind, refused in (("http", 401), ("websocket", 1008)):
        assert knock(token="secret", kind=kind, **away) == refused
        assert knock(token="secret", kind=kind, query="token=wrong", **away) == refused
        assert knock(token="secret", kind=kind, query="token=secret", **away) == "in"
        assert knock(token="secret", kind=kind, authorization="Bearer secret", **away) == "in"
        assert knock(token="secret", kind=kind, authorization="Bearer secre", **away) == refused
    assert (
        knock(token="secret", kind="websocket", query="token=secret", origin="http://other", **away)
        == 1008
    )


def test_a_smaller_search_is_asked_for_on_the_command_line(
    trained: Path, sdjepa, monkeypatch: pytest.MonkeyPatch
):
    served = []
    monkeypatch.setattr("sdjepa.watch.server.watch", lambda run, **asked: served.append(asked))
    code, _, err = sdjepa("watch", trained, "--set", "plan.candidates=9", "--set", "plan.elites=3")
    assert code == 0, err
    own = load_checkpoint(trained).config.plan
    assert served[0]["plan"] == own.model_copy(update={"candidates": 9, "elites": 3})
