"""Runs kept under version control are small, still runs, and make their table by themselves."""

import json
from pathlib import Path

import pytest
import torch

from sdjepa.errors import UserError
from sdjepa.ledger import keep, table
from sdjepa.runs import Run
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


def test_a_run_is_not_kept_over_itself(a_run: Path):
    with pytest.raises(UserError, match="already there"):
        keep(Run.open(a_run), a_run.parent)
