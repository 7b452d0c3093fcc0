"""Defaults are the published values; what a configuration does not know it refuses by name."""

from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from sdjepa.errors import UserError
from sdjepa.resolve import RUNGS, known_keys, load, resolve

RECIPES = Path(__file__).parents[1] / "recipes"

# Written out from the paper and its reference code, not read from the defaults.
PUBLISHED = {
    "data": {"frame_skip": 5, "window_frames": 4, "tail": "ref"},
    "model": {
        "image_size": 224,
        "patch": 14,
        "encoder_width": 192,
        "encoder_depth": 12,
        "encoder_heads": 3,
        "encoder_mlp": 768,
        "latent": 192,
        "projector_hidden": 2048,
        "history": 3,
        "predictor_width": 192,
        "predictor_depth": 6,
        "predictor_heads": 16,
        "predictor_head_dim": 64,
        "predictor_mlp": 2048,
        "dropout": 0.1,
        "action_width": "ref",
        "k": 2,
        "split": "fixed",
        "polar": "off",
        "progress_head": False,
    },
    "objectives": {
        "prediction_weight": 1.0,
        "sigreg_weight": 0.09,
        "triplet_weight": 0.1,
        "straighten_weight": 0.0,
        "prototype_weight": 0.0,
        "first_anchor_weight": 0.0,
        "rollout_weight": 0.0,
        "progress_head_weight": 0.0,
        "sigreg_directions": 1024,
        "sigreg_knots": 17,
        "triplet_on": "progress",
        "triplet_sampler": "ref",
        "triplet_margin": 0.2,
        "triplet_radius": 1,
        "straighten_on": "full",
        "first_anchor_steps": 3,
    },
    "train": {
        "seed": 3072,
        "epochs": 10,
        "steps": 0,
        "batch": 128,
        "learning_rate": 5e-5,
        "weight_decay": 1e-3,
        "decay_on": "all",
        "beta2": 0.999,
        "warmup_share": 0.05,
        "clip": 1.0,
        "precision": "bf16",
    },
    "plan": {
        "cost": "content",
        "gamma": 1.0,
        "delta": 0.1,
        "scale": "ref",
        "when": "last",
        "solver": "cem",
        "candidates": 300,
        "elites": 30,
        "iterations": 30,
        "initial_std": 1.0,
        "horizon": 5,
        "replan": 5,
        "seed": 42,
    },
    "score": {"protocol": "lewm", "tasks": 50, "offset": 25, "budget": 50, "seed": 42},
}


@pytest.mark.parametrize("section", PUBLISHED)
def test_defaults_are_the_published_values(section: str):
    found = getattr(resolve(), section).model_dump()
    assert {name: found[name] for name in PUBLISHED[section]} == PUBLISHED[section]


def recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("objectives.triplet_wieght", "objectives.triplet_weight"),
        ("train.learningrate", "train.learning_rate"),
        ("model.K", "model.k"),
    ],
)
def test_an_unknown_key_names_its_nearest_neighbour(key: str, near: str, tmp_path: Path):
    with pytest.raises(UserError, match=f"unknown key '{key}'.*did you mean '{near}'"):
        resolve(settings=[f"{key}=1"])
    section, leaf = key.split(".")
    with pytest.raises(UserError, match=f"did you mean '{near}'"):
        resolve(recipe(tmp_path, f"[{section}]\n{leaf} = 1\n"))


def test_later_wins_defaults_recipe_then_settings(tmp_path: Path):
    path = recipe(tmp_path, 'k = 8\nrung = "A4"\n[train]\nbatch = 32\nepochs = 3\n')
    config = resolve(path, settings=["train.batch=16"])
    assert (config.train.batch, config.train.epochs, config.train.clip) == (16, 3, 1.0)
    assert (config.model.k, config.rung) == (8, "A4")
    assert resolve(path, rung="A2", k=4).model.k == 4
    assert resolve(path, rung="A2").objectives.straighten_weight == 0


def test_a_recipe_that_contradicts_its_rung_is_refused(tmp_path: Path):
    path = recipe(tmp_path, 'rung = "A2"\n[objectives]\nstraighten_weight = 0.05\n')
    with pytest.raises(UserError, match=r"straighten_weight = 0\.05, rung A2 says 0\.0"):
        resolve(path)
    config = resolve(settings=["objectives.straighten_weight=0.05"])
    assert config.rung == "A2 with other objectives.straighten_weight"


def test_an_unknown_rung_lists_the_known(tmp_path: Path):
    with pytest.raises(UserError, match="unknown rung 'A1'; the rungs are A0, A2"):
        resolve(rung="A1")
    several = recipe(tmp_path, 'rung = ["A0", "A2"]\n')  # as a sweep has them
    with pytest.raises(UserError, match=r"unknown rung \['A0', 'A2'\]; the rungs are"):
        resolve(several)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model.k=192"], "leaves no content"),
        (["model.k=1"], "no angle"),
        (["model.patch=13"], "no multiple"),
        (["model.encoder_heads=5"], "multiple of model.encoder_heads"),
        (["objectives.progress_head_weight=0.1"], "go together"),
        (["model.progress_head=true"], "go together"),
        (["objectives.rollout_weight=1.0", "objectives.rollout_blocks=4"], "window_frames > 4"),
        (["plan.elites=301"], "exceeds plan.candidates"),
        (["plan.replan=6"], "nothing left to execute"),
        (["train.batch=1"], "train.batch"),
        (["train.batch"], "not of the form"),
        (["plan.cost=fastest"], "plan.cost"),
        (["train=3"], "train"),
        (["train.batch.size=3"], "train.batch: "),
        (["train.batch=8", "train.batch.size=3"], "batch is a value, not a section"),
    ],
)
def test_a_contradiction_is_one_line(settings: list[str], said: str):
    with pytest.raises(UserError, match=said) as caught:
        resolve(settings=settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    [
        "plan.cost=angular",
        "objectives.prototype_weight=0.1",
        "objectives.first_anchor_weight=0.1",
        "model.polar=ref",
        "objectives.triplet_weight=0.1",
    ],
)
def test_what_needs_a_progress_part_is_refused_without_one(setting: str):
    with pytest.raises(UserError, match=r"needs model\.k >= 2"):
        resolve(rung="A0", settings=[setting])


@pytest.mark.parametrize(
    "text",
    ["model = 3\n", "train = 3\n", "[train\n", "\x00"],
)
def test_a_damaged_recipe_is_one_line(text: str, tmp_path: Path):
    with pytest.raises(UserError) as caught:
        resolve(recipe(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_says_where_to_look(tmp_path: Path):
    with pytest.raises(UserError, match="no recipe at"):
        resolve(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("rung", RUNGS)
def test_a_resolved_configuration_reads_back_unchanged(rung: str, tmp_path: Path):
    config = resolve(rung=rung, k=4, settings=["train.learning_rate=3e-4"])
    path = recipe(tmp_path, tomli_w.dumps(config.model_dump()))
    assert load(path) == config


@given(st.sampled_from(known_keys()))
def test_every_known_key_can_be_set_to_the_value_it_has(key: str):
    section, leaf = key.split(".")
    config = resolve()
    value = tomli_w.dumps({"v": getattr(getattr(config, section), leaf)}).partition("=")[2]
    assert resolve(settings=[f"{key}={value.strip()}"]) == config


def test_a_configuration_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="frozen"):
        resolve().train.batch = 3  # type: ignore[misc]


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_is_understood_and_says_how_to_make_its_data(path: Path):
    config = resolve(path)
    said = path.read_text().split("\nrung")[0]
    collected = config.collect
    made = (
        f"sdjepa collect {collected.env} --episodes {collected.episodes} --steps {collected.steps}"
    )
    assert made in said or "--episodes" not in said
    assert path.stem.split("-")[0] in (collected.env, "demo")


@pytest.mark.parametrize("setting", ["rung=A0", "rung = nonsense"])
def test_a_rung_is_not_changed_by_a_setting_it_has_long_made(setting: str):
    with pytest.raises(UserError, match=r"cannot change the rung.*--rung A0"):
        resolve(settings=[setting])
