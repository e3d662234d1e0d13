"""What commands tell of references beside our figures, and the warnings where ours are no better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gce import errors

if TYPE_CHECKING:
    from gce.cli.own_plan import Own


def said(beside: Mapping[str, float | None]) -> str:
    """Figures of the references, for brackets."""
    from gce.baselines.references import TITLES

    return ", ".join(f"{TITLES[name]} {value:.4g}" for name, value in beside.items() if value is not None)


def warn(*sentences: str | None) -> None:
    for sentence in sentences:
        if sentence is not None:
            errors.warn(sentence)


def prediction_beside(own: Own, steps: int) -> dict[str, float | None] | None:
    """Mean NRMSE of the model and of the references on the episode that a plan starts from; None where there is none.

    The episode is not among those adapted to; an adapted system from a folder has none of these, so no DMDc.
    """
    from gce.baselines.references import errors_beside
    from gce.metrics import nrmse

    if own.episode is None:
        return None
    episode, model = own.episode.window(0, min(steps, own.episode.length)), own.system.model
    unit, truth = model.observation_std.double().numpy(), episode.observations.astype(float)
    predicted = own.system.predict(truth[0], episode.actions, exogenous=episode.exogenous)
    beside = errors_beside(model, episode, own.adapted, unit)
    ours = float(nrmse(predicted[1:], truth[1:], unit).mean())
    return {"model": ours, **{name: None if e is None else float(e.mean()) for name, e in beside.items()}}


def plan_warnings(nothing: float, planned: float, prediction: Mapping[str, float | None] | None) -> list[str]:
    """Sentences about a plan that is not worth much: distances to the goal at the start and at its end."""
    from gce.baselines.references import warning_of

    sentences = []
    if nothing > 0 and not planned < nothing:
        sentences.append(
            f"the plan is expected to end {planned:.3g} standard deviations from the goal, no nearer than the start "
            f"({nothing:.3g}); doing nothing may be as good"
        )
    if prediction is not None and prediction["model"] is not None:
        beside = {name: value for name, value in prediction.items() if name != "model"}
        sentences += [sentence for sentence in [warning_of(prediction["model"], beside)] if sentence is not None]
    return sentences


NOTES = {"cost": "in the world's own units", "predicted_cost": "of the plan's problem", "nothing": "doing nothing",
         "promised_error": "of the last plan",
         "rms_positions": "at the end, and of doing nothing", "rms_rates": "the same"}  # fmt: skip
"""What figures are of, where their names do not say it."""


def in_words(answer: Mapping[str, Any]) -> str:
    """What a plan or run comes to, in a sentence or two."""
    if "control_error" in answer:
        share, who = answer["control_error_over_nothing"], f"{answer['world']} of {answer['objects']}"
        if share is None:
            return f"{who}: the error after {answer['horizon']} steps is {answer['control_error']:.3g}."
        voltage = answer.get("voltage_error")
        of = "the error of doing nothing" if voltage is None else "the voltage error at the start"
        left = f"{100 * (share if voltage is None else voltage):.3g}% of {of} is left after {answer['horizon']} steps"
        harm = "" if share < 1 or voltage is not None else ", so it did harm"
        return f"{who}: {left}{harm}. {_promise(answer)}"
    if "distance" in answer:
        return (
            f"After {answer['steps']} steps the system is {answer['distance']:.2g} standard deviations from the goal; "
            f"it began {answer['start_distance']:.2g} away."
        )
    told = (
        f"The plan should end {answer['predicted_distance']:.2g} standard deviations from the goal; without it the "
        f"system is {answer['start_distance']:.2g} away."
    )
    known = answer.get("prediction")
    if known is None or known.get("persistence") is None:
        return told
    return (
        f"{told} The model errs by {known['model']:.2g} on a recorded episode that it was not adapted to; taking that "
        f"nothing moves errs by {known['persistence']:.2g}."
    )


def _promise(answer: Mapping[str, Any]) -> str:
    """How the last plan's promise compares with what came of it."""
    promised, reached = answer["promised_error"], answer["control_error"]
    return f"The last plan promised an error of {promised:.2g}; it is {reached:.2g}."


def table(answer: Mapping[str, Any]) -> str:
    """What it comes to in words, then figures of a plan or run, a line each; warnings are told apart."""
    lines = [in_words(answer), ""]
    for name, value in answer.items():
        if name == "prediction" and value is not None:
            value = f"model {value['model']:.4g}, " + said({k: v for k, v in value.items() if k != "model"})
        if name != "warnings":
            note = f" ({NOTES[name]})" if name in NOTES else ""
            several = isinstance(value, list) and value and all(isinstance(v, float) for v in value)
            shown = ", ".join(f"{v:.4g}" for v in value) if several else value
            lines.append(f"{name}: {shown:.4g}{note}" if isinstance(shown, float) else f"{name}: {shown}{note}")
    return "\n".join(lines)
