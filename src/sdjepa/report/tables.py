"""The page's tables as plain cells, and as files: Markdown, CSV and LaTeX say the same."""

import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sdjepa.config import Config
from sdjepa.report import published
from sdjepa.report.compare import pair
from sdjepa.report.figures import FLOOR_NAMES
from sdjepa.report.making import departures, setting_of
from sdjepa.report.read import FLOORS, Rate, RunFiles
from sdjepa.report.style import MINUS


@dataclass(frozen=True)
class Table:
    """Text cells; the first column names the row, the others align right."""

    name: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def score_table(runs: Sequence[RunFiles]) -> Table:
    """Every score of every run beside its floors, then what papers print for the environment."""
    head = ("run", "environment", "how", "tasks", "solved %", "95 %", *FLOOR_NAMES.values())
    rows = []
    for run in runs:
        for score in run.scores:
            floors = [f"{score.floors[n].value:.1f}" if n in score.floors else "" for n in FLOORS]
            how = f"{score.protocol}, {score.cost} cost, {score.solver.upper()}"
            where = published.title(score.env)
            rows.append(
                (run.label, where, how, str(len(score.tasks)), f"{score.rate.value:.1f}",
                 interval(score.rate), *floors)
            )  # fmt: skip
    for env in dict.fromkeys(score.env for run in runs for score in run.scores):
        for item in published.success(env):
            rows.append(
                (item.name, published.title(env), item.note, "", f"{item.value:g}", "", "", "", "")
            )
    return Table("scores", head, tuple(rows))


def interval(rate: Rate) -> str:
    """The two ends of an interval."""
    return f"[{rate.low:.1f}, {rate.high:.1f}]"


def paired_table(runs: Sequence[RunFiles]) -> Table:
    """Every two runs on the tasks both were given; without shared tasks the cells say so."""
    head = ("paired difference", "shared tasks", "it alone", "other alone", "points", "95 %", "p")
    rows = []
    scored = [(run.label, run.headline) for run in runs]
    for (name_1, first), (name_2, second) in itertools.combinations(scored, 2):
        found = pair(first, second) if first and second else None
        label = f"{name_2} against {name_1}"
        if found is None:
            rows.append((label, "none", *[""] * 5))
            continue
        rows.append(
            (label, str(found.num_shared), str(found.only_second), str(found.only_first),
             _signed(found.difference), f"[{_signed(found.low)}, {_signed(found.high)}]",
             f"{found.p_value:.3f}")
        )  # fmt: skip
    return Table("paired", head, tuple(rows))


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", MINUS)


def departure_table(runs: Sequence[RunFiles]) -> Table:
    """Every setting in which a run leaves the paper's defaults."""
    names = dict.fromkeys(name for run in runs for name, _, _ in departures(run.config))
    configs = [run.config for run in runs]
    head = ("setting", "paper", *(run.label for run in runs))
    rows = tuple(
        (name, *(_plain(setting_of(config, name)) for config in (Config(), *configs)))
        for name in names
    )
    return Table("departures", head, rows)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def markdown(table: Table) -> str:
    """A pipe table."""
    lines = [table.head, ("---", *["---:"] * (len(table.head) - 1)), *table.rows]
    return "".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |\n" for row in lines)


def comma_separated(table: Table) -> str:
    """CSV with a header row and ASCII minus signs, so that programs read numbers."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.head)
    writer.writerows([cell.replace(MINUS, "-") for cell in row] for row in table.rows)
    return buffer.getvalue()


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", MINUS: "$-$",
}  # fmt: skip


def latex(table: Table) -> str:
    """A booktabs tabular."""

    def line(row: Sequence[str]) -> str:
        cells = ("".join(_LATEX.get(character, character) for character in cell) for cell in row)
        return " & ".join(cells) + " \\\\\n"

    body = "".join(line(row) for row in table.rows)
    columns = "l" + "r" * (len(table.head) - 1)
    return (
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{line(table.head)}\\midrule\n{body}"
        "\\bottomrule\n\\end{tabular}\n"
    )
