"""Worlds made of pymunk bodies: read all positions at once, and record without building observations on the way."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import pymunk
import pymunk.batch
from jaxtyping import Float
from pymunk.batch import BodyFields

from gce.envs.base import GraphEnv, Policy


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

    def run(self, policy: Policy, steps: int) -> tuple[np.ndarray, np.ndarray]:
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
        return self._noisy(np.concatenate([positions, velocities], axis=-1)), actions


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
