"""Section one: does it plan? Success with its doubt, the floors, the literature, single tasks."""

from collections.abc import Sequence

from sdjepa.report import published
from sdjepa.report.blocks import (
    escape,
    figure,
    grid,
    key,
    missing,
    series_variable,
    split,
    table,
)
from sdjepa.report.figures import planned_path, solved_by_step, success
from sdjepa.report.read import RunFiles, Score
from sdjepa.report.style import to_svg
from sdjepa.report.tables import paired_table, score_table
from sdjepa.report.words import words

Scored = tuple[str, Score]  # label, score
MANY_RUNS = 3  # more than these are not all told one by one


def planning(runs: Sequence[RunFiles]) -> str:
    """The whole section, one block per environment."""
    head = (
        '<section id="plan"><header><span class="number">1</span><h2>Does it plan?</h2>'
        "<p>The planner sees a picture of the present and a picture of the goal, imagines what "
        "action sequences would lead to inside the model, and acts on the best.</p></header>"
    )
    scored = [(run, run.headline) for run in runs]
    envs = dict.fromkeys(score.env for _, score in scored if score is not None)
    body = "".join(
        _environment(env, [(run, score) for run, score in scored if score and score.env == env])
        for env in envs
    )
    for run, score in scored:
        if score is None:
            body += missing(f"{run.label} has no score yet.", f"sdjepa score {run.label}")
    return head + body + _all_scores(runs) + "</section>"


def _environment(env: str, members: Sequence[tuple[RunFiles, Score]]) -> str:
    scored = [(_label(run, len(members)), score) for run, score in members]
    printed = published.success(env)
    title = published.title(env)
    alt = f"Success in {title}: " + "; ".join(
        f"{label} {score.rate.value:.0f} %" for label, score in scored
    )
    chart = "".join(
        f'<div class="{kind}">'
        + to_svg(
            success(scored, published=printed, wide=kind == "wide-only"),
            alt=alt,
            name=f"success-{env}-{kind[0]}",
        )
        + "</div>"
        for kind in ("wide-only", "narrow")
    )
    caption = (
        f"<b>Tasks solved in {escape(title)}, percent.</b> Bars: this page's runs and, thin, their "
        "floors on the same tasks, with 95 % intervals. Diamonds: numbers printed in papers."
    )
    terms = words("task", "wilson", "floor", "replay", "cem", "cost")
    parts = [split(figure(chart, caption) + _literature(members[0]), terms)]
    parts.append(_tasks(scored))
    parts += [
        _rollouts(label, score, index=i)
        for i, (label, score) in enumerate(scored)
        if score.rollouts
    ]
    if len(members) > 1:
        parts.append(_paired([run for run, _ in members]))
    return "".join(parts)


def _label(run: RunFiles, num_runs: int) -> str:
    return "This run" if num_runs == 1 else run.label


def _literature(member: tuple[RunFiles, Score]) -> str:
    run, score = member
    if not published.success(score.env):
        return ""
    found = published.differences(run.config, score, episodes=run.data.get("num_episodes"))
    if not found and (others := published.otherwise(run.config, score)):
        return (
            '<p class="note"><b>The diamonds are models of this size, trained and planned with '
            f"in the paper's way:</b> {escape(published.setting())}. This score departs from that "
            f"in <code>{escape(', '.join(others))}</code>. "
            "A difference is not the method's alone.</p>"
        )
    if not found:
        return (
            f'<p class="note">The published numbers come from the same setting '
            f"({published.setting()}"
            "), so they may be read side by side.</p>"
        )
    return (
        '<p class="note"><b>The diamonds are another, larger setting:</b> '
        f"{escape(published.setting())}. This run has {escape(', '.join(found))}. They show "
        "what the method reaches at full size, not a race this run takes part in.</p>"
    )


def _tasks(scored: Sequence[Scored]) -> str:
    blocks = []
    for i, (label, score) in enumerate(scored):
        ordered = sorted(score.tasks, key=lambda task: task.start_distance or 0.0)
        dots = "".join(
            f'<li class="{"yes" if task.outcome else "no"}" title="episode {task.key[0]}, from row '
            f'{task.key[1]}: {_outcome(task.outcome, task.steps_to_success)}"></li>'
            for task in ordered
        )
        blocks.append(
            f"<h4>{escape(label)}: {score.num_solved} of {len(score.tasks)} tasks</h4>"
            f'<ul class="dots" style="--c:{series_variable(i)}" role="img" aria-label="'
            f"{score.num_solved} tasks solved, {len(score.tasks) - score.num_solved} "
            f'not">{dots}</ul>'
        )
    text = (
        '<p class="note">Every dot is one task, the nearest goals first; filled means solved. '
        "Hover to see which.</p>"
    )
    curve = to_svg(
        solved_by_step(scored),
        alt="Share of tasks solved within so many environment steps",
        name=f"steps-{scored[0][1].env}",
    )
    return f'<div class="runs"><div>{"".join(blocks)}{text}</div><div>{figure(curve)}</div></div>'


def _outcome(outcome: bool, steps: int | None) -> str:
    if not outcome:
        return "not solved"
    return f"solved after {steps} steps" if steps is not None else "solved"


def _rollouts(label: str, score: Score, *, index: int) -> str:
    panels = []
    for number, rollout in enumerate(score.rollouts[:12]):
        verdict = "goal reached" if rollout["success"] else "goal missed"
        drawing = to_svg(
            planned_path(rollout),
            zoom=9,
            alt=f"Planned path of task {rollout['task']}, {verdict}",
            name=f"path-{score.env}-{index}-{number}",
        )
        backdrop = ""
        if rollout.get("extent") and rollout.get("frames"):
            backdrop = f'<img alt="" src="data:image/png;base64,{rollout["frames"][0]}">'
            drawing = f'<div class="over">{drawing}</div>'
        panels.append(
            figure(
                f'<div class="path">{backdrop}{drawing}</div>',
                f"Task {rollout['task']}: {verdict}",
            )
        )
    legend = key(
        [
            ("", "var(--ink)", "start"),
            ("line", "var(--blue)", "what the planner did"),
            ("star", "", "goal"),
        ]
    )
    return (
        f"<h4>Planned episodes, seen from above ({escape(label)})</h4>{legend}"
        f"{grid(panels, size='small')}"
    )


def _paired(runs: Sequence[RunFiles]) -> str:
    found = paired_table(runs)
    rows = [[escape(cell) for cell in row] for row in found.rows]
    numeric = range(1, len(found.head))
    first = len(rows) if len(runs) <= MANY_RUNS else len(runs) - 1  # those against the first run
    body = table(found.head, rows[:first], numeric=numeric, wide=True)
    if rest := rows[first:]:
        body += (
            f"<details><summary>The other {len(rest)} pairs</summary>"
            f"{table(found.head, rest, numeric=numeric, wide=True)}</details>"
        )
    return "<h4>Task by task</h4>" + split(body, words("mcnemar"))


def _all_scores(runs: Sequence[RunFiles]) -> str:
    found = score_table(runs)
    if not found.rows:
        return ""
    rows = [[escape(cell) for cell in row] for row in found.rows]
    body = table(found.head, rows, numeric=range(3, len(found.head)), wide=True)
    return (
        "<details><summary>All scores and published numbers as a table</summary>"
        f"{body}{words('protocol', 'cost')}</details>"
    )
