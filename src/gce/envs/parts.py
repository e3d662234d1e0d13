"""What worlds are made of: bodies that pymunk moves, a canvas to draw on, and pictures of networks.

Of bodies, all positions are read at once, and episodes are recorded without building observations on the way. Shapes
are in metres, antialiased by drawing large and shrinking. The nodes of networks are laid out by networkx and coloured
by a value.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import pymunk
import pymunk.batch
from jaxtyping import Float, Int, UInt8
from PIL import Image, ImageDraw
from pymunk.batch import BodyFields

from gce.envs.base import GraphEnv, Policy
from gce.errors import InputError
from gce.graphs.graph import Graph, is_connected

Colour = tuple[int, int, int]
Point = tuple[float, float]

OVERSAMPLING = 2
LOW, NEUTRAL, HIGH = (44, 96, 178), (244, 243, 236), (196, 52, 48)
FAINT = (224, 226, 228)
WIDTH = 640
"""Of pictures of networks, in pixels."""


class BodyEnv(GraphEnv):
    """A world whose bodies are added to `self.space` in the order of its nodes (static body left out).

    An observation's velocities are finite differences of its positions, v_t = (p_t - p_{t-1}) / dt, v_0 = 0: what a
    camera would see, not the engine's own velocities.
    """

    dt = 1 / 50

    space: pymunk.Space

    @abstractmethod
    def _build_space(self) -> pymunk.Space:
        """A new simulator with all bodies and constraints of `self.parameters`."""

    @abstractmethod
    def _apply(self, action: np.ndarray) -> None:
        """Push the bodies, before the step."""

    @abstractmethod
    def _objects(
        self, positions: Float[np.ndarray, "*batch bodies 2"]
    ) -> Float[np.ndarray, "*batch nodes coordinates"]:
        """The observed positions of every node, from those of the bodies."""

    def _begin(self) -> None:
        self.space = self._build_space()
        self._num_bodies = len(self.space.bodies)
        self._places = BodyField(self.space, self._num_bodies, BodyFields.POSITION)
        self._speeds = BodyField(self.space, self._num_bodies, BodyFields.VELOCITY)
        self._places.read()
        self._position = self._previous = self._objects(self._places.table.copy())

    def _advance(self, action: np.ndarray) -> None:
        self._step(action)
        self._previous, self._position = self._position, self._objects(self._places.table.copy())

    def _step(self, action: np.ndarray) -> None:
        self._apply(action)
        if self.process_noise:
            self._shake()
        self.space.step(self.dt)
        self._places.read()

    def _shake(self) -> None:
        """Process noise: every body's velocity is knocked by a share of the velocities' unit."""
        self._speeds.read()
        unit = self.observation_std[~self.positions].mean()
        self._speeds.table += self.process_noise * unit * self.np_random.standard_normal(self._speeds.table.shape)
        self._speeds.write()

    def _observation(self) -> np.ndarray:
        return np.concatenate([self._position, (self._position - self._previous) / self.dt], axis=-1)

    def run(self, policy: Policy, steps: int, noisy: bool = True) -> tuple[np.ndarray, np.ndarray]:
        bodies = np.empty((steps + 1, self._num_bodies, 2))
        actions = np.empty((steps, *self._action.shape))
        bodies[0] = self._places.table
        for t in range(steps):
            actions[t] = policy(t)
            self._step(actions[t])
            bodies[t + 1] = self._places.table
        positions = self._objects(bodies)
        velocities = np.diff(positions, axis=0, prepend=positions[:1]) / self.dt
        self._position, self._previous = positions[-1], positions[max(steps - 1, 0)]
        seen = np.concatenate([positions, velocities], axis=-1)
        return self._noisy(seen) if noisy else seen, actions


class BodyField:
    """One field (position, velocity, force) of all bodies, as an array that shares memory with the engine's buffer.

    table: [bodies, 2], valid after `read`; `write` puts it back. points: the same as complex numbers x + iy.
    """

    def __init__(self, space: pymunk.Space, num_bodies: int, field: BodyFields) -> None:
        self._space, self._field = space, field
        # The engine frees and replaces a buffer that fills up: leave room for the static body and one more.
        memory = np.zeros((num_bodies + 2, 2))
        self._buffer = pymunk.batch.Buffer()
        self._buffer.set_float_buf(memory)
        self.table = memory[:num_bodies]
        self.points = memory.view(np.complex128)[:num_bodies, 0]

    def read(self) -> None:
        self._buffer.clear()
        pymunk.batch.get_space_bodies(self._space, self._field, self._buffer)

    def write(self) -> None:
        pymunk.batch.set_space_bodies(self._space, self._field, self._buffer)


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


def layout(num_nodes: int, edges: Int[np.ndarray, "edges 2"]) -> Float[np.ndarray, "nodes 2"]:
    """Places in [-1, 1] x [-0.9, 0.9]: by shortest-path distances for small networks, by springs for large ones."""
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_edges_from(edges.tolist())
    placed = networkx.kamada_kawai_layout(graph) if num_nodes <= 150 else networkx.spring_layout(graph, seed=0)
    places = np.array([placed[i] for i in range(num_nodes)])
    span = np.maximum(np.ptp(places, axis=0), 1e-9)
    return (places - places.min(axis=0) - span / 2) / (span / 2) * (0.96, 0.86) - (0, 0.05)


def check_network(world: str, pairs: np.ndarray, count: int, link: str, node: str, apart: str) -> None:
    """That links join all of so many nodes, each pair once. link, node: what a world calls them; apart: what to say of
    those that are not joined."""
    a, nodes, many = f"{'an' if node[0] == 'a' else 'a'} {node}", f"{node}s", f"there are {count} {node}s"
    for i, j in pairs[((pairs < 0) | (pairs >= count)).any(axis=1)]:
        raise InputError(f"{world}: a {link} joins {nodes} {i} and {j} but {many}, numbered from 0")
    if len(np.unique(np.sort(pairs, axis=1), axis=0)) != len(pairs) or (pairs[:, 0] == pairs[:, 1]).any():
        raise InputError(f"{world}: a {link} joins {a} to itself or comes twice; give each pair of {nodes} one {link}")
    if not is_connected(count, pairs):
        raise InputError(f"{world}: the {link}s do not {apart}")


def value_colour(value: float) -> Colour:
    """Blue below 0, white at it, red above; +-1 saturates."""
    return blend(NEUTRAL, HIGH if value > 0 else LOW, abs(value))


def link_colour(num_links: int) -> Colour:
    """Many links fade into a texture; few are drawn stronger."""
    return blend(Canvas.LINK, FAINT, num_links / 200)


def network_canvas() -> Canvas:
    return Canvas(left=-1.08, right=1.08, bottom=-1.0, top=1.0, width=WIDTH)


def node_size(num_nodes: int) -> float:
    return float(np.clip(0.25 / np.sqrt(num_nodes), 0.006, 0.05))


class NetworkPicture:
    """A graph of no known world: circles coloured by one value a node."""

    def __init__(self, graph: Graph) -> None:
        self._edges = graph.edge_index.T[graph.senders < graph.receivers]
        self._places = layout(graph.num_nodes, self._edges)

    def draw(self, values: Float[np.ndarray, " nodes"], caption: str) -> UInt8[np.ndarray, "height width 3"]:
        """values: in units in which +-1 saturates the colour."""
        canvas, size = network_canvas(), node_size(len(self._places))
        for i, j in self._edges:
            canvas.line(self._places[[i, j]], link_colour(len(self._edges)), 0.004)
        for (x, y), value in zip(self._places, values, strict=True):
            canvas.circle((x, y), size, fill=value_colour(float(value)), outline=canvas.LINK)
        canvas.text((-1.05, 0.98), caption)
        return canvas.image()
