"""Solvers are chosen by name or given, agree where they may, and refuse what they are not made for."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from gce.control.graph_path import LinearPath
from gce.control.solver import SOLVERS, Condensed, Solver, Suitable, chosen_solver, register_solver
from gce.control.tracking import DensePath, Selection, Status
from gce.errors import InputError
from plans import random_problem


def solved(name, problem):
    return chosen_solver(name).solve(problem, np.zeros_like(problem.w))


@pytest.mark.parametrize("bound", [np.inf, 0.3])
def test_all_that_keep_to_the_limits_find_the_same_controls(bound):
    problem = random_problem(3, bound)
    names = [name for name in SOLVERS if name != "riccati" or bound == np.inf]
    answers = {name: solved(name, problem) for name in names}
    assert {status for _, status in answers.values()} == {Status.SOLVED}
    for name, (u, _) in answers.items():
        np.testing.assert_allclose(u, answers["suitable"][0], atol=1e-3, err_msg=name)


def test_an_object_with_settings_of_its_own_is_taken_as_it_is():
    rough = Condensed(tolerance=1e-2)
    assert chosen_solver(rough) is rough
    assert Suitable(large=1).solve(random_problem(1, 0.3), np.zeros((6, 2)))[1] == "solved"


def test_a_solver_refuses_what_it_is_not_made_for():
    for limited, words in (
        (random_problem(0, 0.5, 0.1), "bounds, limits on the rate;"),
        (random_problem(0, soft=1.0), "soft"),
    ):
        with pytest.raises(InputError, match=f"'riccati' keeps to no limits, and this problem has {words}"):
            solved("riccati", limited)
    problem = random_problem(0)
    path = problem.path
    sparse = replace(problem, path=LinearPath(path.A[0], csr_array(path.B[0]), path.c, path.x0))
    with pytest.raises(InputError, match="'riccati' needs dynamics as matrices"):
        solved("riccati", sparse)
    with pytest.raises(InputError, match="'condensed' needs dynamics as matrices"):
        solved("condensed", replace(random_problem(0, soft=1.0), path=sparse.path))
    assert solved("matrix_free", sparse)[1] is solved("suitable", sparse)[1] is Status.SOLVED


def test_controls_that_cost_and_do_nothing_are_a_status_not_an_exception():
    problem = random_problem(0)
    idle = replace(problem, path=replace(problem.path, B=0 * problem.path.B), w=0 * problem.w)
    assert solved("riccati", idle)[1] is Status.NUMERICAL_TROUBLE


def test_what_is_no_solver_is_told():
    with pytest.raises(InputError, match="no solver 'newton'; there are riccati, .*gce.register"):
        chosen_solver("newton")
    with pytest.raises(InputError, match="3 is not a solver; give one of riccati, "):
        chosen_solver(3)


def test_registration_names_what_is_missing():
    class Nameless(Solver):
        def solve(self, problem, start):
            return start, Status.SOLVED

    class Unsolving(Solver):
        name = "unsolving"

    class Taken(Nameless):
        name = "condensed"

    for cls, words in (
        (Nameless, "Nameless cannot be registered as a solver: it has no name"),
        (Unsolving, "Unsolving cannot be registered as a solver: it has no solve"),
        (Taken, "there is a solver 'condensed' already, Condensed; give Taken another name"),
        (str, "str cannot be registered as a solver: it is not a class derived from gce.control.solver.Solver"),
    ):
        with pytest.raises(InputError, match=words):
            register_solver(cls)
    assert list(SOLVERS) == ["riccati", "condensed", "matrix_free", "suitable"]


@pytest.mark.parametrize("selected", [True, False])
def test_equal_steps_are_condensed_from_the_powers_of_one_matrix(selected):
    problem = random_problem(4, 0.5)
    path, M = problem.path, len(problem.e)
    equal = DensePath(np.repeat(path.A[:1], M, 0), np.repeat(path.B[:1], M, 0), path.c, path.x0)
    linear = LinearPath(path.A[0], csr_array(path.B[0]), path.c, path.x0)
    E = Selection(np.array([2, 0]), np.random.default_rng(1).random((M, 2)), path.A.shape[1]) if selected else problem.E
    np.testing.assert_allclose(linear.gram(E), equal.gram(E), rtol=1e-9, atol=1e-12)
    bounded = replace(problem, E=E, e=problem.e[:, : 2 if selected else None])
    expected, _ = Condensed().solve(replace(bounded, path=equal), np.zeros_like(problem.w))
    found, status = Suitable().solve(replace(bounded, path=linear), np.zeros_like(problem.w))
    assert status.ok
    np.testing.assert_allclose(found, expected, atol=1e-6)
