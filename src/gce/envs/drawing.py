"""Pictures of worlds: shapes in metres on a canvas, antialiased by drawing large and shrinking."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
Point = tuple[float, float]

OVERSAMPLING = 2


class Canvas:
    """A window onto the plane, `left`..`right` by `bottom`..`top` in world units."""

    PAPER: ClassVar[Colour] = (250, 250, 247)
    RAIL: ClassVar[Colour] = (176, 176, 170)
    LINK: ClassVar[Colour] = (120, 126, 135)
    BODY: ClassVar[Colour] = (64, 110, 170)
    ACTUATED: ClassVar[Colour] = (206, 76, 60)
    SOFT: ClassVar[Colour] = (150, 190, 226)
    RIGID: ClassVar[Colour] = (92, 98, 108)
    FIXED: ClassVar[Colour] = (40, 42, 48)
    GOAL: ClassVar[Colour] = (238, 150, 30)
    ACTION: ClassVar[Colour] = (34, 140, 90)
    INK: ClassVar[Colour] = (30, 30, 34)

    def __init__(self, left: float, right: float, bottom: float, top: float, width: int = 480) -> None:
        self._origin = (left, top)
        self._scale = OVERSAMPLING * width / (right - left)
        # Even numbers of pixels: video encoders want them.
        height = 2 * max(1, round(width * (top - bottom) / (right - left) / 2))
        self._size = (width, height)
        self._picture = Image.new("RGB", (OVERSAMPLING * width, OVERSAMPLING * height), self.PAPER)
        self._pen = ImageDraw.Draw(self._picture)

    def _pixel(self, point: Point) -> Point:
        return ((point[0] - self._origin[0]) * self._scale, (self._origin[1] - point[1]) * self._scale)

    def _pixels(self, length: float) -> int:
        return max(1, round(length * self._scale))

    def line(self, points: Iterable[Point] | np.ndarray, colour: Colour, width: float) -> None:
        self._pen.line(
            [self._pixel((p[0], p[1])) for p in points], fill=colour, width=self._pixels(width), joint="curve"
        )

    def circle(self, centre: Point, radius: float, fill: Colour | None = None, outline: Colour | None = None) -> None:
        (x, y), r = self._pixel(centre), radius * self._scale
        self._pen.ellipse([x - r, y - r, x + r, y + r], fill=fill, outline=outline, width=self._pixels(0.25 * radius))

    def polygon(
        self, corners: Iterable[Point] | np.ndarray, fill: Colour | None, outline: Colour, width: float
    ) -> None:
        points = [self._pixel((p[0], p[1])) for p in corners]
        if fill is not None:
            self._pen.polygon(points, fill=fill)
        self._pen.line([*points, points[0]], fill=outline, width=self._pixels(width), joint="curve")

    def arrow(self, start: Point, end: Point, colour: Colour, width: float = 0.035) -> None:
        along = np.subtract(end, start)
        length = float(np.hypot(*along))
        if length < 1e-9:
            return
        head = min(4 * width, length)
        unit = along / length
        across = np.array([-unit[1], unit[0]])
        base = np.asarray(end) - head * unit
        self.line([start, (base[0], base[1])], colour, width)
        corners = [np.asarray(end), base + 0.5 * head * across, base - 0.5 * head * across]
        self._pen.polygon([self._pixel((c[0], c[1])) for c in corners], fill=colour)

    def text(self, point: Point, words: str, colour: Colour | None = None) -> None:
        self._pen.text(self._pixel(point), words, fill=colour or self.INK, font_size=13 * OVERSAMPLING)

    def image(self) -> UInt8[np.ndarray, "height width 3"]:
        return np.asarray(self._picture.resize(self._size, Image.Resampling.LANCZOS))


def blend(low: Colour, high: Colour, share: float) -> Colour:
    """The colour between two, `share` of the way from low to high."""
    share = min(max(share, 0.0), 1.0)
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(low, high, strict=True))
    return red, green, blue
