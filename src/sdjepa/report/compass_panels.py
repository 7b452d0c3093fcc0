"""Which panels and which words belong to which diagnostic, in reading order."""

from collections.abc import Callable, Iterator

from sdjepa.report import latent_panels, signal_panels
from sdjepa.report.panel import Panel, Record
from sdjepa.report.read import Diagnostic

PANELS: dict[str, Callable[[Record], Iterator[Panel]]] = {
    "course": latent_panels.course,
    "correlation": latent_panels.correlation,
    "probe": latent_panels.probe,
    "order": latent_panels.order,
    "place": latent_panels.place,
    "ranking": signal_panels.ranking,
    "sight": latent_panels.sight,
    "notice": latent_panels.notice,
    "horizon": signal_panels.horizon,
    "events": signal_panels.events,
    "changes": signal_panels.changes,
    "corruption": signal_panels.corruption,
    "surprise": signal_panels.surprise,
    "geometry": latent_panels.geometry,
    "embedding": latent_panels.embedding,
}
TERMS: dict[str, tuple[str, ...]] = {
    "course": ("split", "theta", "r", "held_out"),
    "film": ("theta",),
    "correlation": ("spearman", "clock", "null"),
    "probe": ("probe", "r2", "clock", "null"),
    "order": ("theta", "held_out", "null"),
    "place": ("theta", "null"),
    "ranking": ("cost", "spearman", "null"),
    "sight": ("cost", "split", "spearman", "rank", "null"),
    "notice": ("latent", "split", "held_out"),
    "horizon": ("latent", "block"),
    "events": ("event", "surprise", "auroc", "null"),
    "changes": ("change_point", "f1", "event", "null"),
    "corruption": ("surprise", "auroc"),
    "surprise": ("surprise", "auroc", "null"),
    "geometry": ("cosine", "split", "null"),
    "embedding": ("tsne", "split"),
}


def diagnostic_panels(found: Diagnostic) -> list[Panel]:
    """The figures of one result file; none for a diagnostic the page has no drawing for."""
    if found.name not in PANELS:
        return []
    return list(PANELS[found.name]({**found.record, "extent": found.extent}))
