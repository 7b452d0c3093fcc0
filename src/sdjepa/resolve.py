"""A recipe, a rung and settings in, one whole configuration out.

Later wins: the defaults of `config.py`, the recipe (TOML), the rung's preset, `--set
section.key=value`. An unknown key is refused with its nearest neighbour. The resolved
configuration is written into every artefact, and `load` reads it back unchanged.
"""

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sdjepa.config import Config, Section
from sdjepa.errors import UserError

# The rungs of the paper: what each changes. Everything a rung governs is in its row, so two presets
# never mix. k stands for the chosen width of the progress part.
_OFF = {
    "objectives.straighten_weight": 0.0,
    "objectives.prototype_weight": 0.0,
    "objectives.first_anchor_weight": 0.0,
    "model.polar": "off",
}
_A2 = _OFF | {
    "model.k": "k",
    "objectives.triplet_weight": 0.10,
    "objectives.triplet_on": "progress",
    "plan.cost": "content",
}
_A4 = _A2 | {"objectives.straighten_weight": 0.05}
RUNGS: dict[str, dict[str, Any]] = {
    "A0": _OFF | {"model.k": 0, "objectives.triplet_weight": 0.0, "plan.cost": "full"},
    "A2": _A2,
    "A2_full": _A2 | {"model.k": 0, "objectives.triplet_on": "full", "plan.cost": "full"},
    "A2_split_full": _A2 | {"objectives.triplet_on": "full"},
    "A4": _A4,
    "A5": _A4 | {"model.polar": "ref"},
    "A6": _A4 | {"model.polar": "ref", "plan.cost": "angular"},
    "first_anchor": _A2 | {"objectives.first_anchor_weight": 0.10},
    "progress_only": _A2 | {"plan.cost": "progress"},
}


def resolve(
    recipe: Path | None = None,
    *,
    rung: str | None = None,
    k: int | None = None,
    settings: list[str] | tuple[str, ...] = (),
) -> Config:
    """A new run's configuration: defaults, recipe, rung, then `settings` like `train.batch=64`."""
    tree = _read_toml(recipe) if recipe else {}
    source = str(recipe) if recipe else "the defaults"
    recipe_k = tree.pop("k", None)
    name = rung or tree.pop("rung", "A2")
    tree.pop("rung", None)
    if not isinstance(name, str) or name not in RUNGS:
        raise UserError(f"unknown rung {name!r}; the rungs are {', '.join(RUNGS)}")
    width = k if k is not None else recipe_k if recipe_k is not None else 2
    preset = {key: width if value == "k" else value for key, value in RUNGS[name].items()}
    for key, value in preset.items():
        section, leaf = key.split(".")
        known = tree.get(section, {})
        if not isinstance(known, dict):
            raise UserError(f"{source} says {section} = {known!r}; [{section}] is a section")
        said = known.get(leaf, value)
        if said != value:
            raise UserError(
                f"{source} says {key} = {said!r}, rung {name} says {value!r}; drop that line, "
                f"or keep the rung and add --set {key}={said}"
            )
        _put(tree, key, value)
    for setting in settings:
        _apply(tree, setting)
    config = _validate(tree, source=source, settings=settings)
    departs = [key for key, value in preset.items() if _get(config, key) != value]
    label = f"{name} with other {', '.join(departs)}" if departs else name
    return config.model_copy(update={"rung": label})


def load(path: Path) -> Config:
    """A resolved configuration, exactly as written."""
    return _validate(_read_toml(path), source=str(path))


def change(config: Config, settings: list[str] | tuple[str, ...]) -> Config:
    """`config` with settings like `plan.cost=full` changed, checked as a whole."""
    tree = config.model_dump()
    for setting in settings:
        _apply(tree, setting)
    return _validate(tree, source="--set", settings=settings)


def together(flags: Sequence[str], settings: Sequence[str]) -> list[str]:
    """What options of their own say and what `--set` says; refused where they disagree."""
    said = {key: text for key, _, text in (flag.partition("=") for flag in flags)}
    for setting in settings:
        key, sign, text = (part.strip() for part in setting.partition("="))
        if sign and key in said and _parse_value(text) != _parse_value(said[key]):
            raise UserError(
                f"{key} is {_parse_value(said[key])} by its own option and "
                f"{_parse_value(text)} by --set; leave one of them out"
            )
    return [*flags, *settings]


def only(section: str, settings: Sequence[str]) -> None:
    """Refuse settings of other sections than the one that is read: they would change nothing."""
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key.partition(".")[0] in set(Config.model_fields) - {section}:
            raise UserError(f"{key} has no effect here; leave it out, or set {section}.KEY")


def known_keys() -> list[str]:
    """Every dotted key of the configuration."""
    keys = []
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            keys += [f"{name}.{leaf}" for leaf in section.model_fields]
    return keys


def _apply(tree: dict[str, Any], setting: str) -> None:
    key, sign, text = setting.partition("=")
    if not sign:
        raise UserError(f"--set {setting!r} is not of the form section.key=value")
    if key.strip() == "rung":  # it stands for many settings, which have been made by now
        raise UserError("--set cannot change the rung; name it when training: --rung A0")
    _put(tree, key.strip(), _parse_value(text.strip()))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        ours = Path(__file__).with_name("recipes")
        names = ", ".join(sorted(recipe.name for recipe in ours.glob("*.toml")))
        raise UserError(f"no recipe at {path}; in {ours} are {names}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def _put(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise UserError(f"{dotted}: {parent} is a value, not a section")
    tree[leaf] = value


def _get(config: Config, dotted: str) -> Any:
    value: Any = config
    for part in dotted.split("."):
        value = getattr(value, part)
    return value


def _parse_value(text: str) -> Any:
    """A TOML value; a bare word is a string, so `--set plan.cost=full` needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _validate(tree: dict[str, Any], *, source: str, settings: Sequence[str] = ()) -> Config:
    """`settings` came from the command line; what they say is not blamed on `source`."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        said = [setting.partition("=")[0].strip() for setting in settings]
        if any(name == key or name.startswith(f"{key}.") for name in said):
            source = "this command"
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(key, known_keys(), n=1, cutoff=0.0)
            raise UserError(f"unknown key {key!r} in {source}; did you mean {near[0]!r}?") from None
        message = first["msg"].removeprefix("Value error, ")
        value = "" if isinstance(first["input"], dict) else f" = {first['input']}"
        about = f"{key}{value}: " if key else ""
        raise UserError(f"{about}{message} (in {source})") from None
