"""How the progress part should look: near in time is near in angle.

Samplers choose who is compared; the losses are pure. Random draws are made for the batch of all
ranks and sliced, so the number of processes does not change them.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sdjepa import ranks
from sdjepa.config import Objectives
from sdjepa.objectives.scene import Draw, Extent, Scene, Term


def margin_triplet(
    anchor: Float[Tensor, "*shape dim"],
    positive: Float[Tensor, "*shape dim"],
    negative: Float[Tensor, "*shape dim"],
    *,
    margin: float,
    valid: Bool[Tensor, "*shape"] | None = None,
) -> Float[Tensor, ""]:
    """Mean over valid triplets of relu(cos(a, n) - cos(a, p) + margin); 0 when none is valid."""
    near = F.cosine_similarity(anchor, positive, dim=-1, eps=1e-8)
    far = F.cosine_similarity(anchor, negative, dim=-1, eps=1e-8)
    loss = F.relu(far - near + margin)
    return _mean_over_ranks(
        loss, torch.ones_like(loss, dtype=torch.bool) if valid is None else valid
    )


def _mean_over_ranks(
    values: Float[Tensor, "*shape"], valid: Bool[Tensor, "*shape"]
) -> Float[Tensor, ""]:
    """Mean of the valid values of all ranks, scaled so that averaging over ranks gives it."""
    count = ranks.total(valid.sum().float()).clamp(min=1)
    return torch.where(valid, values, 0).sum() * ranks.world_size() / count


def _local(everyone: Tensor, rows: int) -> Tensor:
    return everyone[ranks.rank() * rows : (ranks.rank() + 1) * rows]


def positives_ref(time: int, radius: int) -> list[int]:
    """The frames of a window that may be the positive of its middle frame, as offsets from it."""
    middle = time // 2
    if radius == 1:
        return [1] if middle + 1 < time else [-1]
    return [o for o in range(-radius, radius + 1) if o and 0 <= middle + o < time]


def draw_ref(extent: Extent, generator: torch.Generator, *, radius: int) -> tuple[Tensor, ...]:
    """Which positive offset, and how far the batch is rolled to find negatives: one of each."""
    count, device = len(positives_ref(extent.time, radius)), generator.device
    return (
        torch.randint(max(count, 1), (1,), generator=generator, device=device),
        torch.randint(1, max(extent.rows, 2), (1,), generator=generator, device=device),
    )


def triplet_ref(
    latents: Float[Tensor, "batch time dim"],
    drawn: tuple[Tensor, ...],
    *,
    margin: float,
    radius: int,
) -> Float[Tensor, ""]:
    """The reference's triplet: a window's middle frame, its successor, another window's middle.

    It carries no temporal order: any other window is a negative, even one of the same episode. With
    radius > 1 one positive offset is drawn for the whole batch. 0 below two rows or two frames.
    """
    batch, time, _ = latents.shape
    everyone = ranks.gather(latents)
    if len(everyone) < 2 or time < 2:
        return latents.sum() * 0
    middle, (choice, shift) = time // 2, drawn
    row = torch.arange(batch, device=latents.device) + ranks.rank() * batch
    negative = everyone[(row + shift) % len(everyone), middle]
    # Stacked in the order of the choices: a list of Python numbers would have to reach the device.
    positives = torch.stack([latents[:, middle + o] for o in positives_ref(time, radius)])
    positive = positives.index_select(0, choice)[0]
    return margin_triplet(latents[:, middle], positive, negative, margin=margin)


def draw_paper(extent: Extent, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Uniform numbers that choose positives, negatives inside, other rows, their frames, and who
    looks elsewhere.
    """
    rows, time = extent.rows, extent.time
    shapes = ((time, time), (time, time), (time, rows), (time,), (time,))
    return tuple(
        torch.rand(rows, *shape, generator=generator, device=generator.device) for shape in shapes
    )


def triplet_paper(
    latents: Float[Tensor, "batch time dim"],
    episode: Int[Tensor, "batch"],
    drawn: tuple[Tensor, ...],
    *,
    margin: float,
    radius: int,
    other_share: float,
) -> Float[Tensor, ""]:
    """The paper's triplet: every frame is an anchor, positives lie within `radius` frames of it.

    The negative is a frame of the same window outside the radius, or, for `other_share` of the
    anchors and where the window has no such frame, a frame of another episode. Anchors without any
    negative are left out.
    """
    batch, time, _ = latents.shape
    device = latents.device
    everyone = ranks.gather(latents)
    episodes = ranks.gather(episode)
    for_positive, for_inside, for_row, for_frame, for_other = (_local(d, batch) for d in drawn)
    gap = (torch.arange(time, device=device)[:, None] - torch.arange(time, device=device)).abs()
    near, outside = (gap > 0) & (gap <= radius), gap > radius
    own = torch.arange(batch, device=device)[:, None]
    positive = latents[own, for_positive.masked_fill(~near, -1).argmax(-1)]
    inside_at = for_inside.masked_fill(~outside, -1).argmax(-1)
    stranger = episode[:, None] != episodes[None, :]
    other_row = for_row.masked_fill(~stranger[:, None, :], -1).argmax(-1)
    other_at = (for_frame * time).long()
    has_inside = outside.any(-1).expand(batch, time)
    has_other = stranger.any(-1, keepdim=True).expand(batch, time)
    use_other = has_other & ((for_other < other_share) | ~has_inside)
    negative = torch.where(
        use_other[..., None], everyone[other_row, other_at], latents[own, inside_at]
    )
    valid = (has_other | has_inside) & near.any(-1)
    return margin_triplet(latents, positive, negative, margin=margin, valid=valid)


def prototypes(progress: Float[Tensor, "batch time k"]) -> Float[Tensor, ""]:
    """Pull a window's first frame to the first unit vector and its last to the second.

    Switched off in every published rung: the ends of a window are arbitrary frames of an episode.
    """
    first, last = torch.eye(progress.shape[-1], device=progress.device)[:2]
    start = (progress[:, 0] - first).square().mean()
    return 0.5 * (start + (progress[:, -1] - last).square().mean())


def first_anchor(
    progress: Float[Tensor, "batch time k"], step: Int[Tensor, "batch time"], *, steps: int
) -> Float[Tensor, ""]:
    """Squared distance to the first unit vector, over frames within `steps` of an episode's start.

    Summed over coordinates (unlike `prototypes`), averaged over such frames; 0 when there are none.
    """
    unit = torch.eye(progress.shape[-1], device=progress.device)[0]
    return _mean_over_ranks((progress - unit).square().sum(-1), step < steps)


def order(scores: Float[Tensor, "batch time"]) -> Float[Tensor, ""]:
    """Logistic ranking loss over all pairs of a window: the later frame should score higher.

    log 2 for constant scores; unlike the reference's triplet it carries the direction of time.
    """
    earlier, later = torch.triu_indices(scores.shape[1], scores.shape[1], offset=1)
    return F.softplus(scores[:, earlier] - scores[:, later]).mean()


def _draw(settings: Objectives, extent: Extent, generator: torch.Generator) -> tuple[Tensor, ...]:
    if settings.triplet_sampler == "ref":
        return draw_ref(extent, generator, radius=settings.triplet_radius)
    return draw_paper(extent, generator)


def _triplet(scene: Scene) -> Tensor:
    s, drawn = scene.settings, scene.drawn["triplet"]
    latents = scene.target(s.triplet_on)
    if s.triplet_sampler == "ref":
        return triplet_ref(latents, drawn, margin=s.triplet_margin, radius=s.triplet_radius)
    return triplet_paper(
        latents,
        scene.episode,
        drawn,
        margin=s.triplet_margin,
        radius=s.triplet_radius,
        other_share=s.triplet_other_share,
    )


def _prototype(scene: Scene) -> Tensor:
    return prototypes(scene.parts.progress)


def _first_anchor(scene: Scene) -> Tensor:
    steps = scene.settings.first_anchor_steps
    return first_anchor(scene.parts.progress, scene.step, steps=steps)


def _progress_head(scene: Scene) -> Tensor:
    assert scene.model.progress_head is not None
    return order(scene.model.progress_head(scene.parts.progress)[..., 0].float())


TERMS: dict[str, Term] = {
    "triplet": _triplet,
    "prototype": _prototype,
    "first_anchor": _first_anchor,
    "progress_head": _progress_head,
}
DRAWS: dict[str, Draw] = {"triplet": _draw}
