"""The vocabulary of the page: one short sentence for every word a newcomer does not know."""

import html
from collections.abc import Iterable

# term: (how it is written, what it means). Sentences are plain: no term explains another by jargon.
GLOSSARY: dict[str, tuple[str, str]] = {
    "task": (
        "task",
        "A start and a goal cut from a recorded episode; the planner sees both as pictures "
        "and must "
        "get from one to the other.",
    ),
    "success": (
        "success",
        "The share of tasks in which the environment's own test said, within the allowed steps, "
        "that the goal was reached. More is better; read it against the floors.",
    ),
    "wilson": (
        "95 % interval",
        "The true success rates that this many tasks cannot rule out (Wilson's formula); "
        "drawn as a "
        "thin line. More tasks make it shorter.",
    ),
    "floor": (
        "floor",
        "What can be had on the same tasks without the model. A score means something only above "
        "doing nothing and acting at random.",
    ),
    "replay": (
        "replay",
        "The recorded actions played again: near 100 % shows that the tasks can be solved and that "
        "the environment is set up as it was when recorded.",
    ),
    "cem": (
        "CEM",
        "Cross-entropy method, the planner: try many random action sequences inside the "
        "model, keep "
        "the best, draw new ones around them, repeat.",
    ),
    "cost": (
        "cost",
        "What the planner makes small: the distance between the predicted latent and the goal's. "
        "The content cost leaves the progress part out. Smaller should mean nearer.",
    ),
    "protocol": (
        "protocol",
        "How tasks are chosen. lewm is the literature's way; strict uses only episodes the model "
        "never saw and drops tasks already solved at the start.",
    ),
    "latent": (
        "latent",
        "The short list of numbers the encoder turns a picture into; the model thinks in these.",
    ),
    "split": (
        "progress and content",
        "SD-JEPA calls the first k numbers of the latent progress (how far along?) and the rest "
        "content (what is there?).",
    ),
    "theta": (
        "\u03b8 (theta)",
        "The angle of the progress part: the needle of the compass. It is a circle, so "
        "colours here "
        "wrap around.",
    ),
    "r": (
        "r",
        "The length of the progress part: how long the needle is. Near 0 the angle means nothing.",
    ),
    "spearman": (
        "Spearman \u03c1",
        "Whether two series rise and fall together, from \u22121 (opposite) to +1 (together); "
        "0 means no relation. Far from 0, and farther than every control, is a finding.",
    ),
    "clock": (
        "clock",
        "The plain step number. A reading that follows it no better than it follows anything else "
        "knows the time, not the task.",
    ),
    "null": (
        "null",
        "The same number for something that cannot know the answer, such as a random plane of the "
        "latent. A finding has to beat it.",
    ),
    "probe": (
        "linear probe",
        "A weighted sum of features fitted to a true quantity and tested on steps it was not "
        "fitted "
        "on.",
    ),
    "r2": (
        "R\u00b2",
        "The share of the ups and downs that a prediction explains: 1 is perfect, 0 is no better "
        "than the mean, below 0 is worse.",
    ),
    "held_out": ("held-out", "Episodes never used in training."),
    "event": (
        "event",
        "A moment when something truly happened, read from the environment's state.",
    ),
    "surprise": (
        "surprise",
        "How wrong the model's prediction of the next step was, as a distance or as an angle. Good "
        "is low throughout, with peaks where something unforeseen happened.",
    ),
    "prediction": (
        "prediction",
        "Squared error of the next latent the model foresees; smaller is better.",
    ),
    "sigreg": (
        "SIGReg",
        "Keeps the latents spread like a bell curve in every direction, so that they cannot all "
        "collapse to one point; pure chance gives about 1.",
    ),
    "triplet": (
        "triplet",
        "Turns neighbouring frames to similar angles and unrelated frames to different ones; 0.2 "
        "means nothing learnt, 0 all learnt.",
    ),
    "rank": (
        "effective rank",
        "How many directions of the latent are really used; more is better, falling towards 1 is "
        "collapse.",
    ),
    "spread": (
        "std",
        "How widely a part of the latent is spread over frames; near 0 it says nothing.",
    ),
    "rollout": (
        "rollout",
        "Squared error after the model has imagined that many blocks without looking; good is "
        "small and slow to grow.",
    ),
    "rung": ("rung", "The paper's name for a variant of the model; A2 is SD-JEPA, A0 is LeWM."),
    "mcnemar": (
        "exact McNemar test",
        "On shared tasks only those that one run solved and the other did not tell runs apart; the "
        "p-value is the chance of so uneven a split between equal runs: below 0.05 they differ.",
    ),
    "auroc": (
        "AUROC",
        "The chance that a moment of interest scores higher than an ordinary one: 0.5 is guessing, "
        "1 perfect, below 0.5 the signal dips.",
    ),
    "f1": (
        "F1",
        "One number for finding true events and not crying wolf: 1 is perfect, 0 finds none.",
    ),
    "block": (
        "block",
        "The few environment steps that the model takes as one step.",
    ),
    "cosine": (
        "cosine",
        "How alike two directions are: 1 the same, 0 unrelated, \u22121 opposite.",
    ),
    "tsne": (
        "t-SNE",
        "Flattens many numbers to a page so that neighbours stay neighbours; distances between "
        "clouds mean nothing.",
    ),
    "change_point": ("change point", "A step where a signal is detected to change its level."),
}  # fmt: skip


def words(*terms: str) -> str:
    """The margin note that explains `terms`; an unknown term is our own mistake."""
    return _list(dict.fromkeys(terms))


def _list(terms: Iterable[str]) -> str:
    entries = "".join(
        f"<div><dt>{html.escape(GLOSSARY[term][0])}</dt>"
        f"<dd>{html.escape(GLOSSARY[term][1])}</dd></div>"
        for term in terms
    )
    return f'<dl class="words" aria-label="Words used here">{entries}</dl>' if entries else ""
