"""`gce explore`: potentials, jobs, who may ask, and the page end to end in a real browser."""

import dataclasses
import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from browser import DESK, PHONE, chromium, opened, overflow, pale, swiped
from gce.cli import main
from gce.envs import WORLDS, PowerGrid, Rope
from gce.errors import InputError
from gce.system.system import adapt
from gce.system.weights import weights_along
from gce.views.explorer import server as serving
from gce.views.explorer.server import Bench, Explorer, Job, Server, Stopped
from gce.views.explorer.workshop import (
    TRAINED,
    Choice,
    RecordedSystem,
    check,
    described,
    potentials_of,
    prepare,
    pursue,
    reach,
    under_potential,
)
from small import system_episodes, untrained

# ---- potentials ----


def test_a_constant_potential_weighs_all_neighbours_alike():
    episodes, model = system_episodes(), untrained()
    system = adapt(under_potential(model, "constant"), episodes[1:], measure=False)
    weights = weights_along(system, episodes[0].observations.astype(float), episodes[0].actions)
    degrees = np.bincount(system.graph.receivers)
    assert np.allclose(weights, 1 / degrees[system.graph.receivers])
    assert under_potential(model, TRAINED) is model


def test_other_potentials_keep_the_encoder_and_are_as_strong_at_one_bandwidth():
    model = untrained()
    sigma, p = model.potential.value.item(), model.features.num_phi
    wide, laplace = under_potential(model, "wide"), under_potential(model, "laplace")
    assert math.isclose(wide.potential.value.item(), 2 * sigma, rel_tol=1e-5)
    assert torch.equal(laplace.features.encoder.output.weight, model.features.encoder.output.weight)
    apart = torch.randn(20000, p, generator=torch.Generator().manual_seed(0))
    apart = sigma * apart / apart.norm(dim=1, keepdim=True)
    with torch.no_grad():
        gaussian = model.potential(apart, torch.zeros_like(apart)).mean().item()
        other = laplace.potential(apart, torch.zeros_like(apart)).mean().item()
    assert math.isclose(gaussian, -0.5, rel_tol=1e-4) and abs(other - gaussian) < 0.05
    with pytest.raises(InputError, match="there is no potential 'cubic'"):
        under_potential(model, "cubic")
    assert list(potentials_of(untrained(form="dense"))) == [TRAINED]


# ---- jobs ----


def ended(job):
    while job.working:
        time.sleep(0.01)
    return job.look(0)


def test_jobs_are_done_one_at_a_time_and_can_be_stopped():
    bench, go_on = Bench(), threading.Event()

    def work(job):
        job.add({"n": 1})
        job.tell("half", 0.5)
        go_on.wait(5)
        job.tell("more", 0.6)
        return "never"

    job = bench.start(work)
    with pytest.raises(InputError, match="still at work"):
        bench.start(work)
    while job.look(0)["words"] != "half":
        time.sleep(0.01)
    assert bench.job(job.number).look(0)["items"] == [{"n": 1}] and job.look(1)["items"] == []
    job.stop()
    go_on.set()
    assert ended(job)["state"] == "stopped"
    passing = bench.start(lambda job: [job.tell("on", None) for _ in iter(int, 1)], passing=True)
    assert ended(bench.start(lambda job: 43))["result"] == 43 and passing.look(0)["state"] == "stopped"
    with pytest.raises(InputError, match="there is no job 7"):
        bench.job(7)
    assert ended(bench.start(lambda job: 42))["result"] == 42


def test_what_goes_wrong_in_a_job_becomes_a_sentence(capsys):
    def refuse(job):
        raise InputError("the goal is far away")

    assert ended(Bench().start(refuse))["result"] == "the goal is far away"
    found = ended(Bench().start(lambda job: 1 / 0))
    assert found["state"] == "failed" and "ZeroDivisionError: division by zero" in found["result"]
    assert "Traceback" in capsys.readouterr().err


# ---- the work ----


@pytest.fixture(scope="module")
def prepared():
    return prepare(Choice("rope", 4, "constant", 1), Job(0))


def test_a_goal_is_pursued_on_the_simulator_step_by_step(prepared):
    job = Job(1)
    told = described(prepared)
    assert told["still"][0] == [False, True] and not any(told["still"][1])  # the first mass slides on its rail
    assert json.dumps(told, allow_nan=False)
    result = pursue(prepared, prepared.goal, 12, job)
    items = job.look(0)["items"]
    steps, plans = [i for i in items if i["kind"] == "step"], [i for i in items if i["kind"] == "plan"]
    assert [s["step"] for s in steps] == list(range(13)) and len(plans) == 1 and len(plans[0]["frames"]) == 13
    assert steps[0]["places"] == told["start"] and len(steps[3]["weights"]) == len(told["scene"]["edges"])
    assert steps[-1]["distance"] < result["nothing"][-1]


class Listener(Job):
    """A job that keeps what it was told."""

    def __init__(self):
        super().__init__(0)
        self.told = []

    def tell(self, words, share):
        super().tell(words, share)
        self.told.append((words, share))


def test_a_plan_tells_how_far_it_is_and_can_be_stopped_on_the_way(prepared):
    protocol = dataclasses.replace(Rope.recipe.protocol, feedback=7)
    prepared = dataclasses.replace(prepared, protocol=protocol)
    job = Listener()
    pursue(prepared, prepared.goal, 12, job)
    words, shares = zip(*job.told, strict=True)
    assert list(shares) == sorted(shares) and shares[0] == 0 and shares[-1] == pytest.approx(1)
    plans = [line for line in words if line.startswith("planning 12 steps: turn ")]
    assert len(plans) > 2 and plans[0].endswith("turn 1, 0% settled")
    assert int(re.search(r"(\d+)% settled", plans[-1])[1]) > 50
    assert any(line.startswith("planning 5 steps: turn 2") for line in words) and words[-1] == "step 12 of 12"
    half = Listener()
    half.tell = lambda words, share: half.stop() if "turn 2" in words else Job.tell(half, words, share)
    with pytest.raises(Stopped):
        pursue(prepared, prepared.goal, 12, half)
    assert [item["kind"] for item in half.look(0)["items"]] == ["step"]  # no plan was made


@pytest.mark.parametrize(
    ("change", "words"),
    [({"world": "sea"}, "no world 'sea'"), ({"objects": 900}, "objects is 900"), ({"seed": "x"}, "seed is 'x'")],
)
def test_choices_that_cannot_be_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        check({"world": "rope", "objects": 4, "potential": "trained", "seed": 0, **change})


# ---- who may ask ----


@pytest.fixture(scope="module")
def running():
    server = Server(0, Explorer())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def asked(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_only_our_own_page_is_answered(running):
    page, own = f"/?token={running.token}", f"http://127.0.0.1:{running.server_port}"
    assert asked(running, "GET", page)[0] == 200
    assert asked(running, "GET", page, Origin=own)[0] == 200
    assert asked(running, "GET", "/")[0] == asked(running, "GET", "/?token=guess")[0] == 403
    assert asked(running, "GET", page, Host="evil.example")[0] == 403
    assert asked(running, "GET", page, Host="127.0.0.1:1")[0] == 403
    for origin in ("http://evil.example", "null", "https://127.0.0.1"):
        status, words = asked(running, "POST", "/api/choices", "{}", X_Token=running.token, Origin=origin)
        assert status == 403 and "other pages" in json.loads(words)["error"]
    assert asked(running, "POST", "/api/stop", "{}")[0] == 403
    assert asked(running, "POST", "/api/stop", "{}", X_Token="guess")[0] == 403
    assert running.server_address[0] == "127.0.0.1"


def test_no_path_leads_out_of_the_folder(running):
    assert asked(running, "GET", "/scene.js")[0] == 200
    for path in (
        "/../server.py",
        "/%2e%2e/server.py",
        "/assets/../../errors.py",
        "//etc/passwd",
        "/scene.js/",
        "/server.py",
    ):
        assert asked(running, "GET", path)[0] == 404, path
    assert asked(running, "POST", "/api/__init__", "{}", X_Token=running.token)[0] == 404


def test_bad_requests_get_a_sentence(running):
    for path, body, status, words in (
        ("/api/prepare", "{", 400, "not JSON"),
        ("/api/prepare", "[]", 400, "not a JSON object"),
        ("/api/prepare", '{"world": "sea"}', 400, "no world 'sea'"),
        ("/api/prepare", '{"world": []}', 400, "no world []"),
        ("/api/prepare", "[" * 100_000, 400, "not JSON"),
        ("/api/plan", "{}", 400, "no system yet"),
        ("/api/look", '{"job": -1}', 400, "job is -1"),
    ):
        found, text = asked(running, "POST", path, body, X_Token=running.token)
        assert found == status and words in json.loads(text)["error"], path
    assert asked(running, "POST", "/api/prepare", "{}", X_Token=running.token, Content_Length="2000001")[0] == 413


def test_a_goal_must_be_a_table_of_finite_numbers():
    for rows, words in (("far", "not a table"), ([[1e400]], "finite numbers of shape"), ([[10**400]], "not a table")):
        with pytest.raises(InputError, match=words):
            serving._goal(rows, (1, 1))


def test_a_busy_port_gets_a_sentence_and_status_2(running, capsys):
    with pytest.raises(SystemExit) as end:
        main(["explore", "--port", str(running.server_port)])
    assert end.value.code == 2 and "is in use; give another with --port" in capsys.readouterr().err


# ---- end to end ----


def raw(server, text):
    """What comes back for bytes of any kind; nothing where the connection is closed at once."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(text.replace("HOST", f"127.0.0.1:{server.server_port}").encode("latin1"))
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode("latin1")


@pytest.mark.parametrize(
    "text",
    [
        "POST /api/look HTTP/1.1\r\nHost: HOST\r\nX-Token: TOKEN\r\nContent-Length: " + "9" * 5000 + "\r\n\r\n",
        "POST /api/look HTTP/1.1\r\nHost: HOST\r\nX-Token: TOKEN\r\nContent-Length: ²\r\n\r\n",
        "POST /api/look HTTP/1.1\r\nHost: HOST\r\nX-Token: é\r\nContent-Length: 2\r\n\r\n{}",
        "POST /api/look HTTP/1.1\r\nHost: HOST\r\nX-Token: TOKEN\r\nContent-Length: 9999\r\n\r\n" + "[" * 9999,
        "GET //[ HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: HOST\r\nOrigin: " + "x" * 60000 + "\r\n\r\n",
        "\x00\x01\r\n\r\n",
    ],
)
def test_odd_requests_are_refused_without_a_traceback(running, text, capsys):
    answer = raw(running, text.replace("TOKEN", running.token))
    assert answer == "" or re.match(r"HTTP/1\.[01] 4\d\d |<!DOCTYPE|<html", answer)
    assert "Traceback" not in capsys.readouterr().err


def test_two_hundred_requests_at_once_are_all_answered(running):
    found, page = [], f"/?token={running.token}"
    threads = [threading.Thread(target=lambda: found.append(asked(running, "GET", page)[0])) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 200


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


def test_pick_drag_plan_and_watch_until_it_is_stopped(browser):
    """The command as a user runs it, in a process of its own."""
    command = [sys.executable, "-m", "gce", "explore", "--port", "0"]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where the tests run in background
    ) as job:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", job.stderr.readline())
            page, complaints = opened(browser, address.group(), DESK)
            pick_and_drag(page)
            plan_and_watch(page)
            assert complaints == [] and overflow(page) <= 0
            page.locator("#horizon").fill("3")
            page.locator("#plan").click()
            page.get_by_text("the horizon is 3, expected 5 to 200 steps").wait_for()
            job.stderr.readline()
            job.send_signal(signal.SIGINT)
            assert job.wait(10) == 0 and job.stderr.read().strip() == "stopped"
            page.locator("#horizon").fill("30")
            page.locator("#plan").click()
            page.get_by_text("the server does not answer").wait_for(timeout=10_000)
            page.close()
        finally:
            job.kill()


def pick_and_drag(page):
    page.locator("#plan:enabled").wait_for(timeout=120_000)
    offered = [o.strip() for o in page.locator("#world option").all_inner_texts()]
    assert offered[:5] == list(WORLDS) and offered[5:] in ([], list(PowerGrid.cases))
    page.locator("#objects").fill("4")
    page.locator("#potential").select_option("wide")  # picked while the system is still being made
    page.locator("#plan:disabled").wait_for()
    page.locator("#plan:enabled").wait_for(timeout=120_000)
    assert page.locator("#picture circle.body").count() == 4
    goal, box = across(page, "goal"), page.locator("#picture .goals circle").nth(2).bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 30, box["y"] + 5, steps=4)
    page.mouse.up()
    moved = np.subtract(across(page, "goal"), goal)
    assert moved.min() > 10 and np.ptp(moved) < 0.3  # all of it moved along the rail


def plan_and_watch(page):
    start = across(page, "body")
    page.locator("#horizon").fill("30")
    page.locator("#objects").fill("4")  # as it is: heard while the plan is made, and no reason to stop it
    page.locator("#plan").click()
    page.get_by_text("of the error of doing nothing").wait_for(timeout=120_000)
    page.get_by_text("step 30, 0.60 s").wait_for()  # played in its own time
    page.locator("#picture .ghosts circle[visibility=visible]").first.wait_for()
    page.locator("#words", has_text="done,").wait_for()
    assert np.abs(np.subtract(across(page, "body"), start)).max() > 5
    assert float(page.locator("#figures dd").first.inner_text().split()[0]) < 90
    assert page.locator("#distance path.series").count() == 3
    page.locator("#step").fill("12")
    assert page.locator("#clock").inner_text() == "step 12, 0.24 s"
    assert page.locator("#again").inner_text() == "Watch again"


def across(page, kind):
    return page.eval_on_selector_all(f"#picture circle.{kind}", "all => all.map((e) => Number(e.getAttribute('cx')))")


def test_what_fails_inside_is_shown_on_a_phone_too(browser, running, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("the simulator broke")

    monkeypatch.setattr("gce.views.explorer.workshop.pursue", broken)
    page, complaints = opened(browser, running.address, PHONE, "dark")
    page.locator("#plan:enabled").wait_for(timeout=120_000)
    assert overflow(page) <= 0 and complaints == []
    assert page.locator("#picture svg").bounding_box()["width"] > 300
    goal = across(page, "goal")
    page.locator("#picture").press("ArrowLeft")
    assert np.subtract(across(page, "goal"), goal).max() < -5
    page.locator("#plan").click()
    page.locator("#alarm:visible").wait_for()
    assert "the simulator broke" in page.locator("#alarm").inner_text()
    assert page.locator("#plan").is_enabled()
    page.close()


def test_a_finger_drags_the_goal_and_a_second_one_does_not_disturb_it(browser, running):
    page, complaints = opened(browser, running.address, PHONE, touch=True)
    page.locator("#plan:enabled").wait_for(timeout=120_000)
    page.locator("#picture").scroll_into_view_if_needed()
    goal, box = across(page, "goal"), page.locator("#picture .goals circle").nth(2).bounding_box()
    x, y, at = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, page.evaluate("scrollY")
    swiped(page, [[(x + k, y + k) for k in range(0, 45, 5)], [(x + 60 - k, y + 90) for k in range(0, 45, 5)]])
    moved = np.subtract(across(page, "goal"), goal)
    width = page.locator("#picture svg").bounding_box()["width"]
    assert moved == pytest.approx(40 * 640 / width, abs=0.3)  # as far as the finger went, in the picture's units
    assert page.evaluate("scrollY") == at  # the page stayed where it was
    swiped(page, [[(x + 40 - k, y) for k in range(0, 45, 5)]])
    assert across(page, "goal") == pytest.approx(goal, abs=0.3)
    assert complaints == []
    page.close()


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")], ids=["desk", "phone"])
def test_every_world_is_picked_while_the_one_before_still_plays(browser, running, size, scheme):
    page, complaints = opened(browser, running.address, size, scheme)
    page.locator("#plan:enabled").wait_for(timeout=120_000)
    for world in WORLDS:
        page.locator("#world").select_option(world)
        page.locator("#objects").fill(page.locator("#objects").get_attribute("min"))
        page.locator("#horizon").fill("20")
        page.get_by_text(" to end ").wait_for(timeout=120_000)  # how near the model thinks it gets, before any plan
        assert page.locator("#potential-field").is_visible() == (page.get_by_text("effective neighbours").count() > 0)
        page.locator("#picture").press("ArrowUp")
        assert page.locator("#grip").inner_text().startswith("Goal of ")
        assert pale(page) == [] and overflow(page) <= 0
        page.locator("#plan").click()
        page.locator("#clock", has_text=re.compile("^step [1-9]")).wait_for(timeout=120_000)  # it plays
    page.locator("#seed").fill("-1")
    page.locator("#seed-wrong").get_by_text("seed is -1").wait_for()
    assert page.locator("#seed").get_attribute("aria-invalid") == "true"
    assert complaints == []
    page.close()


def test_every_control_of_the_page_is_reached_by_keyboard(browser, running):
    page, _ = opened(browser, running.address)
    page.locator("#plan:enabled").wait_for(timeout=120_000)
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.name"))
    assert {"world", "objects", "seed", "potential", "horizon", "plan", "reset", "mode", "picture"} <= reached
    page.close()


def test_systems_of_a_data_set_are_offered_with_and_without_a_simulator(tmp_path):
    """The episodes of a file known to a world, and the same as somebody else's."""
    from gce.trajectory import Dataset, Writer
    from gce.views.explorer.workshop import choices

    main(["data", "rope", "--episodes", "6", "--group-size", "6", "--objects", "4", "--out", str(tmp_path / "rope.h5")])
    with Dataset.open(tmp_path / "rope.h5") as data, Writer(tmp_path / "own.h5", {"dt": 0.02}) as writer:
        group = writer.add_group(data[0].graph, {})
        for k in range(6):
            writer.add_episode(group, data[k].observations, data[k].actions)
    for name, simulated in (("rope.h5", True), ("own.h5", False)):
        file = tmp_path / name
        assert choices([file])["worlds"][-1]["objects"] == {"low": 0, "high": 5, "start": 0}
        with Dataset.open(file) as data:
            known = data[1], [data[k] for k in (2, 3, 4, 5, 0)]
        bound = np.array([[2.0], [0], [0], [0]])
        model = untrained()
        model.config = dataclasses.replace(model.config, world="rope" if simulated else None)
        read = RecordedSystem(model, *known, -bound, bound, list("abcd"))
        found = prepare(
            check({"world": str(file), "objects": 1, "seed": 0}, [file]), Job(0), lambda *_, read=read: read
        )
        told, job = described(found), Job(1)
        assert told["simulated"] == simulated and json.dumps(told, allow_nan=False)
        result = pursue(found, found.goal, 5, job)
        assert bool(result["figures"]) == simulated
        assert [i["step"] for i in job.look(0)["items"] if i["kind"] == "step"] == list(range(6))
        assert len(reach(found, found.goal, 5, Job(2))["distances"]) == 6
    with pytest.raises(InputError, match="objects is 9"):
        check({"world": str(file), "objects": 9, "seed": 0}, [file])
