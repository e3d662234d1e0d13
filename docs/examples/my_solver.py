"""A solver: projected gradient descent with momentum on the quadratic problem of a plan."""

import numpy as np

import gce
from gce.control.solver import Solver
from gce.control.tracking import Status, columns, rows


@gce.register
class Descent(Solver):
    name = "descent"
    iterations = 2000

    def solve(self, problem, start):
        """min |E x - e|^2 + |w u - v|^2 within the limits, where x follows u along `problem.path`."""
        path, limits = problem.path, problem.limits

        def gradient(u):
            miss = rows(problem.E, path.forward(u)) - problem.e
            return path.adjoint(columns(problem.E, miss)) + problem.w * (problem.w * u - problem.v)

        still = gradient(np.zeros_like(start))
        direction, largest = np.ones_like(start), 1.0
        for _ in range(20):  # power iteration: the largest curvature
            direction = gradient(direction / largest) - still
            largest = float(np.linalg.norm(direction))
        u = before = limits.nearest(start)
        for k in range(self.iterations):
            ahead = u + k / (k + 3) * (u - before)
            before, u = u, limits.nearest(ahead - gradient(ahead) / (1.1 * largest))
            if np.abs(u - before).max() < 1e-10:
                return u, Status.SOLVED
        return u, Status.ITERATION_LIMIT
