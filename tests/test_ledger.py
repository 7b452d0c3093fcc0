"""Runs kept under version control are small, still runs, and make their table by themselves."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from sdjepa.config import Plan
from sdjepa.errors import UserError
from sdjepa.ledger import keep, table
from sdjepa.runs import Run, write_json
from sdjepa.scoring.trained import score
from sdjepa.train.checkpoint import load_checkpoint


def test_a_kept_run_is_still_a_run_and_its_line_says_what_its_files_say(
    a_run: Path, tmp_path: Path, sdjepa
):
    scored = json.loads(score(a_run)[0].read_text())
    folder = tmp_path / "results"
    code, _, err = sdjepa("ledger", str(folder), "--add", str(a_run), "--weights")
    assert code == 0, err
    kept = folder / "run"
    mine, theirs = (load_checkpoint(path).model.state_dict() for path in (kept, a_run))
    for name, value in theirs.items():
        assert torch.equal(mine[name], value.bfloat16().to(value.dtype)), name
    record = json.loads(next((kept / "scores").glob("*.json")).read_text())
    assert "rollouts" not in record
    assert record["tasks"] == scored["tasks"]
    text = (folder / "README.md").read_text()
    low, high = scored["wilson95"]
    assert f"{scored['success_rate']:.1f} ({low:.1f} to {high:.1f})" in text
    assert "| [run](run) | tworoom | A2, 2, 3072 |" in text
    assert (kept / "data" / "card.md").exists()
    # The kept weights plan as they are, without the dataset on the same tasks, and the table does
    # not depend on when it is written.
    for file in (kept / "config.toml", kept / "checkpoints/latest/config.json"):
        text = file.read_text()
        lost = text.replace(Run.open(a_run).config.data.path, str(tmp_path / "gone"))
        assert lost != text
        file.write_text(lost)
    asked = Run.open(kept).config.score.model_copy(update={"protocol": "lewm"})
    again = json.loads(score(kept, settings=asked)[0].read_text())
    assert again["protocol"] == "strict", "of which its tasks are, whatever is asked for"
    assert again["data"]["pack"]
    places = [(task["episode"], task["start"]) for task in scored["tasks"]]
    assert [(task["episode"], task["start"]) for task in again["tasks"]] == places
    assert table(folder).read_text().count("| run | strict |") == 1


@pytest.mark.parametrize(("changed", "said"), [(False, "| 1234567 |"), (True, "| 1234567+ |")])
def test_a_commit_with_changes_on_top_is_marked(changed: bool, said: str, a_run: Path):
    manifest = a_run / "manifest.json"
    code = {"commit": "1234567890", "changed": changed}
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"code": code}))
    assert said in table(a_run.parent).read_text()


def test_a_run_is_not_kept_over_itself(a_run: Path):
    with pytest.raises(UserError, match="already there"):
        keep(Run.open(a_run), a_run.parent)


def test_the_table_of_runs_shows_each_planner_by_rule_not_by_success(a_run: Path, tmp_path: Path):
    record = json.loads(score(a_run)[0].read_text())
    paper = Plan().model_dump() | {"cost": "content", "precision": "bf16"}
    anew = paper | {"replan": 1, "when": "min"}
    kept = keep(Run.open(a_run), tmp_path / "results", name="one")
    shutil.rmtree(kept / "scores")
    made = [  # plan, tasks, success, offset
        (paper, 100, 61.0, 25),
        (anew, 200, 72.0, 25),
        (anew | {"pull": 9.0}, 50, 99.0, 25),  # better, on fewer tasks
        (paper | {"iterations": 10}, 300, 98.0, 25),
        (paper, 300, 97.0, 50),
        (anew | {"cost": "full"}, 300, 96.0, 25),
    ]
    for number, (plan, tasks, success, offset) in enumerate(made):
        config = {**record["config"], "plan": plan}
        config["score"] = {**record["config"]["score"], "offset": offset}
        changed = {"config": config, "num_tasks": tasks, "success_rate": success}
        said = record | changed | {"protocol": "strict", "cost": plan["cost"]}
        write_json(kept / "scores" / f"{number}.json", said)
    row = next(x for x in table(kept.parent).read_text().splitlines() if x.startswith("| [one]"))
    shown = [cell.split()[0] for cell in row.split("|")[-5:-1]]
    assert shown == ["-", "61.0", "-", "72.0"]  # lewm and strict, by either planner
