"""Held-out episodes as the model reads them, as a recording for the viewer rerun.

Frames, theta, r, surprise and 2-d path of each episode go onto one timeline, `step`, as entities
`episode-N/...`. Where a model has no progress part its first two coordinates stand in, as in the
compass.
"""

from pathlib import Path
from types import ModuleType

import numpy as np
from matplotlib.colors import to_rgb

from sdjepa.compass.suite import STAND_IN, choose, read_trace
from sdjepa.compass.trace import EpisodeTrace, wrap
from sdjepa.data.episodes import Episodes
from sdjepa.envs.base import env_class
from sdjepa.errors import UserError
from sdjepa.report.player import angle_map
from sdjepa.runs import Progress, silent
from sdjepa.train.checkpoint import load_checkpoint, refuse_other
from sdjepa.train.source import episodes_for
from sdjepa.watch.world import png


def export_rerun(
    run: Path,
    out: Path,
    *,
    data: Path | None = None,
    episodes: int = 3,
    seed: int = 0,
    progress: Progress = silent,
) -> Path:
    """Write `out` (an .rrd file) with some held-out episodes of the run's dataset."""
    rr = _rerun()
    checkpoint = load_checkpoint(run)
    size = checkpoint.config.model.image_size
    source = Episodes.open(episodes_for(run, checkpoint.config, given=data), size=size)
    refuse_other(run, checkpoint.config, source)
    chosen = choose(source, checkpoint.config, split="test", count=episodes, seed=seed)
    k = checkpoint.config.model.k or STAND_IN
    trace = read_trace(checkpoint, source, chosen, k=k, progress=progress)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial")
    recording = rr.RecordingStream("sdjepa", recording_id=f"{run.resolve().name}-{seed}")
    try:
        recording.save(partial)
        for done, episode in enumerate(trace.episodes, start=1):
            _log(rr, recording, episode, source)
            progress(done, len(trace.episodes), "episodes")
        recording.flush()
    except OSError as error:
        raise UserError(f"could not write {out}: {error}; free some space") from error
    finally:
        recording.disconnect()
    partial.replace(out)
    return out


def _rerun() -> ModuleType:
    try:
        import rerun
    except ModuleNotFoundError as error:
        raise UserError(
            "this export needs the package rerun-sdk; run: pip install 'sdjepa[rerun]'"
        ) from error
    return rerun


def _log(rr: ModuleType, recording, episode: EpisodeTrace, source: Episodes) -> None:
    name, rows = f"episode-{episode.index}", source.rows(episode.index)
    frames = source.frames(np.arange(rows.start, rows.stop))
    theta = wrap(episode.theta)
    colours = _colours(theta)
    points = _in_picture(episode, source)
    recording.log(f"{name}/path", rr.LineStrips2D([points], colors=[(150, 150, 150)]), static=True)
    surprises = _on_rows(episode)
    for row in range(episode.num_rows):
        recording.set_time("step", sequence=row)
        picture = rr.EncodedImage(contents=png(frames[row]), media_type="image/png")
        recording.log(f"{name}/frame", picture)
        recording.log(
            f"{name}/agent", rr.Points2D(points[row : row + 1], colors=colours[row], radii=2.0)
        )
        recording.log(f"{name}/theta", rr.Scalars(float(theta[row])))
        recording.log(f"{name}/r", rr.Scalars(float(episode.radius[row])))
        for kind, values in surprises.items():
            if row in values:
                recording.log(f"{name}/surprise/{kind}", rr.Scalars(values[row]))


def _on_rows(episode: EpisodeTrace) -> dict[str, dict[int, float]]:
    """Surprises by row; they exist once per action block."""
    rows = episode.step_rows[episode.history :]
    series = {"latent": episode.latent_error, "angle": episode.angle_error}
    return {
        name: dict(zip(rows.tolist(), values.tolist(), strict=True))
        for name, values in series.items()
    }


def _in_picture(episode: EpisodeTrace, source: Episodes) -> np.ndarray:
    """The path in pixels of a frame where the camera looks straight down, else as it is."""
    extent = env_class(source.env).extent
    if extent is None:
        return np.asarray(episode.path, dtype=np.float32)
    left, right, top, bottom = extent
    corner, span = np.array([left, top]), np.array([right - left, bottom - top])
    return ((episode.path - corner) / span * source.image_size).astype(np.float32)


def _colours(theta_rad: np.ndarray) -> np.ndarray:
    wheel = (255 * np.array([to_rgb(colour) for colour in angle_map()])).astype(np.uint8)
    return wheel[(theta_rad / (2 * np.pi) % 1 * len(wheel)).astype(int) % len(wheel)]
