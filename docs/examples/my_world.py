"""A world: tanks on a ring, each with a pump; water flows from the fuller to the emptier neighbour."""

from dataclasses import make_dataclass

import numpy as np

import gce
from gce.envs import GraphEnv, Protocol, Recipe


@gce.register
class Tanks(GraphEnv):
    world, dt, Parameters = "tanks", 0.1, make_dataclass("TanksParameters", ["tanks", "width"])
    observation_names = position_names = ("level",)
    action_names, action_limit, action_weight, num_relations = ("inflow",), 1.0, 0.01, 2
    object_range, group_size, observation_std, action_std = (5, 8), 6, np.array([0.5]), np.array([0.5])
    recipe = Recipe(Protocol(30, 30, 0.1, 1.0, 1e-2), unseen=(9, 12))  # how it is controlled; sizes for tests
    actuated = property(lambda self: np.ones(self.parameters.tanks, bool))  # each tank has a pump

    def draw_parameters(self, rng, tanks):
        return self.Parameters(tanks, rng.uniform(0.5, 2))

    def build_graph(self, parameters):
        return gce.Graph.from_adjacency(np.roll(np.eye(n := parameters.tanks), 1, 0) + np.roll(np.eye(n), -1, 0))

    def excitation(self, rng, steps):
        return rng.uniform(-1, 1, (steps, self.parameters.tanks, 1)).astype(np.float32).__getitem__

    def _begin(self):
        self._level = self.np_random.uniform(-1, 1, (self.parameters.tanks, 1))

    def _advance(self, action):
        flow = np.tanh(np.roll(self._level, 1, 0) - self._level)  # from the tank before
        self._level = self._level + 0.1 * (self.parameters.width * (flow - np.roll(flow, -1, 0)) + action)

    def _observation(self):
        return self._level.copy()

    def draw(self, observation, *_):  # a column of pixels a tank
        return 255 - (np.arange(64)[::-1, None] < 32 + 12 * observation.T)[..., None] * np.uint8([185, 125, 75])
