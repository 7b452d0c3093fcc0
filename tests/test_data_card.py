"""A data card says what is known of a dataset, and is written whole or not at all."""

import io
import json
import shlex
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from matplotlib import image

from sdjepa.config import Collect
from sdjepa.data.again import command
from sdjepa.data.card import card, task_floors
from sdjepa.data.card_text import markdown
from sdjepa.data.collect import collect
from sdjepa.data.convert import convert
from sdjepa.data.episodes import Episodes
from sdjepa.data.pack import write_pack
from sdjepa.data.replaying import candidate_starts
from sdjepa.data.sheet import EDGE, PAPER, chosen, contact_sheet, png, tiled
from sdjepa.envs import base
from sdjepa.errors import UserError
from small import foreign


@pytest.fixture(scope="module", params=["tworoom", "pusht"])
def dataset(request, tmp_path_factory) -> Path:
    settings = Collect(env=request.param, episodes=8, steps=40, size=32, workers=1)
    return collect(settings, tmp_path_factory.mktemp("data") / "set")


def without_card(dataset: Path, tmp_path: Path, change=lambda file: None) -> Path:
    """A copy that has no card yet, after `change` has edited its HDF5 file."""
    copy = tmp_path / "set"
    shutil.copytree(dataset, copy, ignore=shutil.ignore_patterns("card.*"))
    with h5py.File(copy / "episodes.h5", "r+") as file:
        change(file)
    return copy


def refused(path: Path) -> str:
    """The one line with which a card is refused; nothing is left of it."""
    with pytest.raises(UserError) as error:
        card(path, tasks=2)
    assert not list(path.glob("card.*"))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_card_counts_tasks_that_need_nothing_done(dataset):
    env = base.make(Episodes.open(dataset).env)
    with Episodes.open(dataset) as data:
        here = task_floors(data, env, count=20, offset=0, budget=3)
        ahead = task_floors(data, env, count=20, offset=25, budget=3)
    assert here["solved_at_start_share"] == here["solved_by_doing_nothing_share"] == 1
    assert ahead["solved_at_start_share"] < 0.5
    assert ahead["solved_by_replaying_share"] == 1
    assert ahead["start_distance_quantiles"]["0.95"] > here["start_distance_quantiles"]["0.95"]


def test_collecting_leaves_a_card_with_a_picture(dataset):
    record = json.loads((dataset / "card.json").read_text())
    text = (dataset / "card.md").read_text()
    assert record["num_episodes"] == 8
    assert f"| Policy | {record['policy']['name']}" in text
    assert "solved by doing nothing" in text
    assert (dataset / "card.png").read_bytes().startswith(b"\x89PNG")
    assert card(dataset, tasks=5) == dataset / "card.md"
    # Wilson's interval of five of five.
    assert (
        "| ... solved by the recorded actions | 100 % (57 to 100) |"
        in (dataset / "card.md").read_text()
    )


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_a_card_of_states_that_cannot_be_is_refused_before_anything_is_written(
    dataset, tmp_path, value
):
    def change(file):
        file["state"][:] = file["proprio"][:] = value

    path = without_card(dataset, tmp_path, change)
    assert "missing, infinite or beyond" in refused(path)


def test_a_card_without_any_action_is_refused(dataset, tmp_path):
    def change(file):
        file["action"][:] = np.nan

    path = without_card(dataset, tmp_path, change)
    assert "has an action" in refused(path)


def test_a_card_of_the_wrong_environment_is_refused(dataset, tmp_path):
    path = without_card(dataset, tmp_path)
    info = json.loads((path / "dataset.json").read_text())
    (path / "dataset.json").write_text(json.dumps({**info, "env": "cube"}))
    assert refused(path) == (
        f"{path} has no column 'qpos', which cube needs; convert it with the right --env"
    )


def test_a_card_counts_the_starts_it_leaves_out(dataset, tmp_path):
    def change(file):
        file["state"][3] = file["proprio"][3] = np.nan

    path = without_card(dataset, tmp_path, change)
    assert "| ... starts that no simulator can take | 1 |" in card(path, tasks=5).read_text()


def test_a_card_leaves_out_what_is_not_known(dataset, tmp_path):
    """Of another program's file: no seed, no policy, but its columns."""
    shutil.copy(dataset / "episodes.h5", tmp_path / "theirs.h5")
    text = card(tmp_path / "theirs.h5", tasks=2).read_text()
    assert "None" not in text
    assert "unknown" not in text
    assert "Seed" not in text
    with Episodes.open(tmp_path / "theirs.h5") as data:
        assert all(f"\n| {name} | {data.column(name).dtype} |" in text for name in data.columns)
    assert "| pixels | uint8 | 32 x 32 x 3 |" in text


def test_a_card_says_what_a_dataset_was_converted_from(dataset, tmp_path):
    smaller = convert(dataset, tmp_path / "smaller", size=16)
    assert (
        "| Converted from | set; frames of 32 px reduced to 16 |"
        in card(smaller, tasks=2).read_text()
    )


def test_the_card_of_a_pack_says_so_and_shows_only_starts_and_goals(dataset, tmp_path):
    with Episodes.open(dataset) as data:
        pack = write_pack(
            data, [(0, 1), (2, 5)], tmp_path / "pack", offset=9, protocol="lewm", seed=42
        )
    text = card(pack).read_text()
    assert text.startswith("# Evaluation pack:")
    assert "| A pack of | set (328 rows); goals 9 steps ahead" in text
    assert "| Tasks looked at, of 2 in it, goal 9 steps ahead (95 % intervals) | 2 |" in text
    assert "![start and goal of 2 tasks](card.png)" in text
    whole, own = (json.loads((at / "card.json").read_text())["action"] for at in (dataset, pack))
    normaliser = json.loads((dataset / "dataset.json").read_text())["action"]
    mean, std = (", ".join(f"{value:.3g}" for value in normaliser[n]) for n in ("mean", "std"))
    assert (
        f"| Actions of the whole dataset, which normalise: mean; deviation | {mean}; {std} |"
        in text
    )
    assert "| Action mean, of these tasks |" in text
    assert own["mean"] != whole["mean"]
    shown, like = image.imread(pack / "card.png"), np.zeros((2, 2, 128, 128, 3), np.uint8)
    assert shown.shape[:2] == tiled(like)[0].shape[:2]  # two tasks, 32 px four times
    assert shown[..., :3].mean() > 0.5  # most of what is black is so because nothing was drawn


@pytest.mark.parametrize(
    ("policy", "said"), [("random", "random"), ("expert", "expert, noise 1.0")]
)
def test_noise_and_goals_are_told_only_of_a_policy_that_has_some(tmp_path, policy, said):
    settings = Collect(env="tworoom", policy=policy, episodes=3, steps=10, size=16, workers=1)
    path = collect(settings, tmp_path / "set")
    text = (path / "card.md").read_text()
    assert f"| Policy | {said} |" in text
    assert ("the policy reached a goal" in text) == (policy == "expert")


def test_the_command_in_a_card_makes_the_dataset_again(sdjepa, tmp_path):
    settings = Collect(
        env="tworoom",
        policy="expert",
        noise=0.5,
        episodes=5,
        steps=6,
        size=16,
        seed=3,
        workers=1,
        test_share=0.4,
    )
    first = collect(settings, tmp_path / "first")
    (row,) = (line for line in (first / "card.md").read_text().splitlines() if "Made by" in line)
    words = shlex.split(row.split("`")[1])
    assert words[0] == "sdjepa"
    again = tmp_path / "again"
    code, _, said = sdjepa(*words[1:-1], again, "--workers", "1")
    assert code == 0, said
    ours, theirs = (json.loads((p / "dataset.json").read_text()) for p in (first, again))
    for key in ("columns", "split", "collect", "policy"):
        assert ours[key] == theirs[key]


def test_the_command_that_made_it_names_no_other_default_and_is_one_to_type():
    def typed(**changes):
        return command(Collect(**changes), Path("DIR"))

    few = {"episodes": 10, "steps": 40, "size": 64}
    assert typed(env="tworoom", policy="expert", **few) == (
        "sdjepa collect tworoom --episodes 10 --steps 40 --policy expert --size 64 --seed 0 "
        "--out DIR"
    )
    assert typed(env="pusht", policy="demos", demos="my demos.npz") == (
        "sdjepa collect pusht --episodes 10000 --policy demos --demos 'my demos.npz' --seed 0 "
        "--out DIR"
    )
    assert "--set collect.shadow=512" in typed(env="cube", policy="expert", shadow=512)
    assert "--noise 0.5" in typed(env="cube", noise=0.5)
    assert "--noise 2 " in typed(env="cube", noise=2.0)
    assert "--noise 0.12345678" in typed(env="cube", noise=0.12345678)  # fewer give other actions


def test_a_card_does_not_tell_where_demonstrations_lay(dataset):
    record = json.loads((dataset / "card.json").read_text())
    record["collect"] |= {"demos": "/home/me/my demos.npz", "policy": "demos"}
    text = markdown(record, picture="my file.h5.card.png", shown="")
    assert "(my%20file.h5.card.png)" in text  # else no picture is shown
    assert "--demos FILE" in text
    assert "/home/me" not in text


def test_a_checksum_of_demonstrations_is_said_to_be_of_their_arrays(dataset):
    record = json.loads((dataset / "card.json").read_text())
    record["policy"] = {"name": "demos", "noise": 1.0, "demos_sha256": "0123456789abcdef01"}
    record["collect"]["demos"] = "/home/me/d.npz"
    text = markdown(record, picture="card.png", shown="")
    assert "| Policy | demos (d.npz, SHA-256 of its arrays 0123456789abcdef)" in text


def test_the_card_says_of_how_many_tasks_those_it_tried_are(dataset):
    assert card(dataset, tasks=5) == dataset / "card.md"
    record = json.loads((dataset / "card.json").read_text())
    assert record["tasks"]["candidates"] == 8 * (41 - 25)
    assert (
        "| Tasks looked at, of 128 in it, goal 25 steps ahead" in (dataset / "card.md").read_text()
    )


def test_lengths_of_episodes_are_rounded_not_cut(tmp_path):
    card(foreign(tmp_path / "a.h5", lengths=(3, 4, 5)), offset=2, named="none")
    rows = json.loads((tmp_path / "a.h5.card.json").read_text())["episode_rows"]
    assert [rows[share] for share in ("0.05", "0.5", "0.95")] == [3, 4, 5]  # of 3.1, 4, 4.9


def test_what_a_simulator_leaves_of_nothing_is_told_as_nothing():
    from sdjepa.data.card_text import _number

    assert [_number(value) for value in (2.94e-11, -1e-9, 0.0021, 70.31)] == [
        "0",
        "0",
        "0.0021",
        "70.3",
    ]


def test_tiles_of_a_contact_sheet_are_large_whole_pixels_with_an_edge_on_paper():
    frames = np.random.default_rng(0).integers(0, 255, (2, 3, 50, 50, 3), dtype=np.uint8)
    sheet, left, top = tiled(frames)
    side = 150  # three times 50: the first multiple beyond 112
    for y, line in zip(top, frames, strict=True):
        for x, frame in zip(left, line, strict=True):
            tile = sheet[y : y + side, x : x + side].copy()
            assert np.array_equal(tile[1::3, 1::3], frame)
            assert (sheet[y - 1, x - 1 : x + side + 1] == EDGE).all()
            sheet[y - 1 : y + side + 1, x - 1 : x + side + 1] = PAPER
    assert (sheet == PAPER).all()
    assert tiled(frames.repeat(3, 2).repeat(3, 3))[0].shape == sheet.shape


def test_a_contact_sheet_shows_the_tiles_as_they_are_and_words_beside_them():
    frames = np.random.default_rng(0).integers(0, 255, (2, 3, 120, 120, 3), dtype=np.uint8)
    names, captions = ["episode 0", "episode 7"], [["step 0", "step 5", "step 10"]] * 2
    shown = image.imread(io.BytesIO(png(frames, names=names, captions=captions)))[..., :3]
    shown = (255 * shown).round().astype(np.uint8)
    plain, left, top = tiled(frames)
    assert shown.shape == plain.shape
    places = [(y, x) for y in top for x in left]
    for (y, x), frame in zip(places, frames.reshape(-1, 120, 120, 3), strict=True):
        assert np.array_equal(shown[y : y + 120, x : x + 120], frame)
        assert (shown[y - 18 : y - 2, x : x + 30] < 128).any()  # its step
    assert (shown[top[1] : top[1] + 20, : left[0] - 1] < 128).any()  # its episode


@pytest.mark.parametrize(("episodes", "steps", "lines", "across"), [(1, 1, 1, 2), (2, 3, 2, 4)])
def test_of_short_episodes_no_frame_is_shown_twice(tmp_path, episodes, steps, lines, across):
    settings = Collect(env="tworoom", episodes=episodes, steps=steps, size=16, workers=1)
    with Episodes.open(collect(settings, tmp_path / "set")) as data:
        rows = chosen(data)
        assert rows.shape == (lines, across)
        assert len(np.unique(rows)) == rows.size
        said = "1 episode from" if lines == 1 else "2 episodes from"
        assert contact_sheet(data)[1].startswith(said)


class Drifting:
    """Comes by its goal in the third step, whatever is done."""

    action_dim, distance_is = 2, "steps"

    def __init__(self):
        self.actions = []

    def set_state(self, row):
        self.left = 3

    def set_goal(self, row):
        self.actions.append([])

    def distance(self):
        return float(self.left)

    def solved(self):
        return self.left == 0

    def step(self, action):
        self.left -= 1
        self.actions[-1].append(action)


def test_what_solves_itself_within_the_budget_is_solved_by_doing_nothing(dataset):
    with Episodes.open(dataset) as data:
        for budget, share in ((2, 0), (3, 1), (9, 1)):
            env = Drifting()
            found = task_floors(data, env, count=4, offset=5, budget=budget)
            assert found["solved_by_doing_nothing_share"] == share
            assert found["solved_at_start_share"] == 0
            assert found["start_distance_quantiles"]["0.5"] == 3
            assert not np.any(env.actions[0])
            assert len(env.actions[0]) == min(budget, 3)


class Measured(Drifting):
    def set_state(self, row):
        self.state = row["proprio"]

    def set_goal(self, row):
        self.goal = row["proprio"]

    def distance(self):
        return float(np.abs(self.state - self.goal).max())

    def solved(self):
        return self.distance() == 0

    def step(self, action):
        pass


def test_a_start_is_followed_by_its_goal_in_the_same_episode(dataset, tmp_path):
    path = foreign(tmp_path / "a.h5", lengths=(5, 3, 4))
    with Episodes.open(path) as data:
        assert candidate_starts(data, 3).tolist() == [0, 1, 8]
        assert candidate_starts(data, 2).tolist() == [0, 1, 2, 5, 8, 9]
    with Episodes.open(dataset) as data:
        found = task_floors(data, Measured(), count=10**6, offset=25, budget=1)
        starts = candidate_starts(data, 25)
        place = data.column("proprio")
        apart = np.abs(place[starts] - place[starts + 25]).max(1)
        assert found["start_distance_quantiles"]["0.5"] == pytest.approx(np.quantile(apart, 0.5))


def test_the_card_tells_random_actions_from_smooth_ones(tmp_path):
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.normal(size=(400, 1)), axis=0)
    action = np.hstack([rng.normal(size=(400, 1)), walk]).astype(np.float32)
    other = np.zeros((400, 3))
    card(foreign(tmp_path / "a.h5", lengths=(200, 200), action=action, proprio=None, other=other))
    record = json.loads((tmp_path / "a.h5.card.json").read_text())
    noisy, smooth = record["action"]["lag1_correlation"]
    assert abs(noisy) < 0.2
    assert smooth > 0.9
