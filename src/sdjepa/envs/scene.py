"""A picture to be drawn: a MuJoCo scene, and what the ways of drawing made of it beforehand."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sdjepa.envs.caster import Pose
from sdjepa.envs.part import Stand
from sdjepa.envs.reach import Extent
from sdjepa.envs.shadow import NOTHING, Box

if TYPE_CHECKING:
    from sdjepa.envs.painter import Painter


@dataclass
class Places:
    """Where all geoms are, under the names MuJoCo's data has for it."""

    geom_xpos: np.ndarray
    geom_xmat: np.ndarray


@dataclass
class Scene:
    """Where everything is that is to be drawn, and the part of the shadow map it needs."""

    mjv: Any
    shadows: Box = NOTHING
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 4), dtype=np.int64))
    places: Places | None = None
    painter: "Painter | None" = None  # that noted or drew it; what follows is for this one alone
    pose: Pose | None = None
    to_map: np.ndarray | None = None  # matrices of meshes
    to_picture: np.ndarray | None = None
    extent: Extent | None = None  # of what moves, in the picture
    stand: Stand | None = None
    slot: int | None = None  # its number among the scenes sifted last
