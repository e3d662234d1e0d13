"""How a plan ended: one enumeration for all solvers. A failure is a value with advice, not an exception."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How a plan, or one of its quadratic problems, ended; prints, compares and is written as a word or a few.

    advice: what to do about it, a sentence; empty where nothing needs to be done.
    """

    advice: str

    SOLVED = "solved", ""
    ITERATION_LIMIT = (
        "iteration limit",
        "Allow more turns (iterations), shorten the horizon, or plan again more often (feedback).",
    )
    TIME_LIMIT = "time limit", "Give the solver more seconds, or shorten the horizon."
    NO_DESCENT = (
        "no step improves the plan",
        "Begin from another plan (start), shorten the horizon, or choose a goal nearer to what was recorded.",
    )
    HARDLY_IMPROVES = (
        "hardly improves any more",
        "The plan is usually as good as a solved one, near a kink of the model; to go on nevertheless, raise patience.",
    )
    INFEASIBLE = (
        "infeasible",
        "No actions keep to all limits: look for bounds that cross, or a rate too small to come within the bounds.",
    )
    NOT_FINITE = (
        "the model's prediction is not finite",
        "Shorten the horizon or narrow the bounds, and adapt to episodes that begin near this observation.",
    )
    UNBOUNDED = "unbounded", "Give bounds of the actions, or an action cost above zero."
    NUMERICAL_TROUBLE = (
        "numerical trouble",
        "Look for numbers that are huge or not finite, and choose costs nearer to each other, all above zero.",
    )

    def __new__(cls, word: str, advice: str = "") -> Status:
        status = str.__new__(cls, word)
        status._value_, status.advice = word, advice
        return status

    @property
    def ok(self) -> bool:
        """Whether the plan is solved."""
        return self is Status.SOLVED
