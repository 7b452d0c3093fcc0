"""Push-T's picture, drawn only where something moves: a space in, the simulator's own pixels out.

The simulator draws 512 pixels a side anew for every frame and reduces them to 224. Here the table
with its goal and walls is drawn and reduced once. A frame draws the block, the agent and their
contacts onto that, in the simulator's order and by the same pygame calls, and reduces what lies
around them: 16 pixels become 7, so every tile of 16 is reduced by itself.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sdjepa.envs.base import NATIVE_SIZE

TILE, SMALL_TILE = 16, 7  # sides of a tile before and after: 512 / 224 = 16 / 7
EDGE_PX = 2  # radius of a drawn edge
MARGIN_PX = 5  # by which an edge or a contact may stand out
WALL_PX = 10  # walls lie within this of the border

Box = tuple[int, int, int, int]  # left, top, right, bottom


class Table:
    """One table; `space`, `agent` and `block` change, what stands still does not."""

    def __init__(self, module: ModuleType, env: Any) -> None:
        """`env` shows the table with nothing on it: draw it after its shapes were removed."""
        import pygame

        self._pygame = pygame
        background = np.frombuffer(pygame.image.tobytes(env.screen, "RGBA"), np.uint8)
        side = env.window_size
        # Memory that pygame draws in and numpy reads. Four bytes a pixel: on three pygame blends
        # the lines of contacts otherwise.
        self._canvas = background.reshape(side, side, 4).copy()
        self._surface = pygame.image.frombuffer(self._canvas.data, (side, side), "RGBA")
        self._contacts = module.DrawOptions(self._surface)
        self._contacts.flags = module.DrawOptions.DRAW_COLLISION_POINTS
        self._contacts.draw_segment = self._contact
        self._drawer = module.DrawOptions(self._surface)
        self._touched: list[tuple[int, int]] = []
        self._walls: list[Any] = []
        self._colours: dict[str, tuple[Any, Any]] = {}
        self._clean = self._canvas
        self._small = np.zeros((NATIVE_SIZE, NATIVE_SIZE, 3), np.uint8)

    def furnish(self, env: Any, light_color: Any) -> None:
        """Learn the walls and the colours of a space with everything in it."""
        self._walls = list(env.space.static_body.shapes)
        for wall in self._walls:
            self._wall(wall)
        for name, body in (("agent", env.agent), ("block", env.block)):
            colour = self._drawer.color_for_shape(next(iter(body.shapes)))
            self._colours[name] = (colour.as_int(), light_color(colour).as_int())
        self._clean = self._canvas.copy()
        self._small = self._reduce((0, 0, len(self._clean), len(self._clean)))

    def frame(self, env: Any) -> UInt8[np.ndarray, "224 224 3"]:
        """The picture of the present state."""
        boxes = [self._block(env.block), self._agent(env.agent)]
        side = len(self._canvas)
        if any(min(b[:2]) < WALL_PX or max(b[2:]) > side - WALL_PX for b in boxes):
            for wall in self._walls:
                self._wall(wall)
        env.space.debug_draw(self._contacts)
        if self._touched:
            boxes.append(_around(self._touched, MARGIN_PX))
            self._touched.clear()
        image = self._small.copy()
        tiles = [self._tiles(box) for box in boxes]
        for left, top, right, bottom in tiles:
            if left < right and top < bottom:
                place = np.s_[_small(top) : _small(bottom), _small(left) : _small(right)]
                image[place] = self._reduce((left, top, right, bottom))
        for left, top, right, bottom in tiles:
            place = np.s_[top:bottom, left:right]
            self._canvas[place] = self._clean[place]
        return image

    def _tiles(self, box: Box) -> Box:
        """The box grown to whole tiles, and cut at the table's edge."""
        side = len(self._canvas)
        left, top = (min(max(0, v), side) // TILE * TILE for v in box[:2])
        right, bottom = (-(-min(max(0, v), side) // TILE) * TILE for v in box[2:])
        return left, top, right, bottom

    def _reduce(self, box: Box) -> UInt8[np.ndarray, "h w 3"]:
        import cv2

        left, top, right, bottom = box
        part = self._canvas[top:bottom, left:right]
        small = cv2.resize(part, (_small(right - left), _small(bottom - top)))
        return cv2.cvtColor(small, cv2.COLOR_RGBA2RGB)

    def _wall(self, wall: Any) -> None:
        colour = self._drawer.color_for_shape(wall)
        self._drawer.draw_fat_segment(wall.a, wall.b, wall.radius, colour, colour)

    def _contact(self, a: Any, b: Any, color: Any) -> None:
        """Stands in for the simulator's drawing of a contact, and remembers where it was."""
        ends = [(round(a[0]), round(a[1])), (round(b[0]), round(b[1]))]
        self._pygame.draw.aalines(self._surface, color.as_int(), False, ends)
        self._touched += ends

    def _agent(self, body: Any) -> Box:
        (shape,) = body.shapes
        edge, fill = self._colours["agent"]
        x, y = body.position
        place = (round(x), round(y))
        radius = round(shape.radius)
        self._pygame.draw.circle(self._surface, edge, place, radius, 0)
        self._pygame.draw.circle(self._surface, fill, place, round(shape.radius - 4), 0)
        return _around([place], radius + MARGIN_PX)

    def _block(self, body: Any) -> Box:
        draw, surface = self._pygame.draw, self._surface
        edge, fill = self._colours["block"]
        points: list[tuple[int, int]] = []
        for shape in body.shapes:
            world = [body.local_to_world(v) for v in shape.get_vertices()]
            corners = [(round(v[0]), round(v[1])) for v in world]
            draw.polygon(surface, fill, corners)
            for number, corner in enumerate(corners):
                self._edge(corners[number - 1], corner, colour=edge)
                draw.circle(surface, edge, corner, EDGE_PX)
            points += corners
        return _around(points, MARGIN_PX)

    def _edge(self, start: tuple[int, int], stop: tuple[int, int], *, colour: Any) -> None:
        """An edge as the simulator has it: a thick line, and a strip over it."""
        draw, surface = self._pygame.draw, self._surface
        draw.lines(surface, colour, False, [start, stop], 2 * EDGE_PX)
        down, along = abs(stop[1] - start[1]), abs(stop[0] - start[0])
        scale = EDGE_PX / (down * down + along * along) ** 0.5
        dx, dy = round(down * scale), round(along * scale)
        strip = [
            (start[0] - dx, start[1] - dy),
            (start[0] + dx, start[1] + dy),
            (stop[0] + dx, stop[1] + dy),
            (stop[0] - dx, stop[1] - dy),
        ]
        draw.polygon(surface, colour, strip)


def _around(points: Sequence[tuple[int, int]], margin: int) -> Box:
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    return min(xs) - margin, min(ys) - margin, max(xs) + margin + 1, max(ys) + margin + 1


def _small(pixels: int) -> int:
    return pixels // TILE * SMALL_TILE
