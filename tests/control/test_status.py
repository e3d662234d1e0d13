"""A status is a word, with advice."""

import json
import pickle
from pathlib import Path

from gce.control.tracking import Status


def test_a_status_prints_compares_and_is_written_as_its_word():
    assert f"{Status.SOLVED}" == str(Status.SOLVED) == "solved" == Status.SOLVED
    assert json.loads(json.dumps({"status": Status.NOT_FINITE})) == {"status": "the model's prediction is not finite"}
    assert [Status(word) for word in ("iteration limit", "time limit")] == [Status.ITERATION_LIMIT, Status.TIME_LIMIT]
    assert pickle.loads(pickle.dumps(Status.UNBOUNDED)) is Status.UNBOUNDED


def test_all_but_solved_come_with_a_sentence_of_advice_of_their_own():
    assert Status.SOLVED.ok and Status.SOLVED.advice == ""
    others = [status for status in Status if not status.ok]
    assert len(others) == len(Status) - 1 == len({status.advice for status in others})
    assert all(status.advice[0].isupper() and status.advice.endswith(".") for status in others)


def test_the_page_on_control_lists_every_status_with_its_advice():
    page = (Path(__file__).resolve().parents[2] / "docs" / "control.md").read_text()
    assert all(f"| `{status}` | {status.advice or 'nothing to do'} |" in page for status in Status)
