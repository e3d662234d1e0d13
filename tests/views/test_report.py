"""`gce report`: the page's numbers, and the page in a real browser."""

import dataclasses
import json

import numpy as np
import pytest

from browser import DESK, PHONE, chromium, opened, overflow, pale
from gce.cli import main
from gce.views.report import Details, write_details
from gce.views.report.page import data_of, distance, page

WORDS = ["mass", "masses", "positions", "m"]
POINTS = {
    "disks": [[0, 1, 2, 3]],
    "polygons": [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]],
    "network": [],
}
FIGURES = {"control_error": 0.05, "control_error_over_nothing": 0.07, "cost": 12.5, "plan_seconds": [1.0, 0.5],
           "status": "solved", "control_error_positions": 0.02, "rms_positions": [0.02, 0.3],
           "rms_rates": None}  # fmt: skip


def made(kind="disks", simulated=True, name="rope"):
    """The details of a run of three nodes that nobody simulated: five steps, plans at 0 and 3."""
    rng, points = np.random.default_rng(0), POINTS[kind]
    d, M, n = max(4 * len(points), 2), 5, 3
    observations = rng.uniform(-1, 1, (M + 1, n, d))
    edges = np.array([[0, 1, 2, 0, 1, 1, 2], [0, 1, 2, 1, 0, 2, 1]])
    weights = rng.uniform(0.1, 1, (M + 1, 7))
    weights /= np.stack([np.bincount(edges[1], row) for row in weights])[:, edges[1]]
    actions = np.zeros((M, n, 1))
    actions[:, 0, 0] = [0.5, -0.5, 1.0, 0.2, -1.0]
    planned = np.concatenate([actions, actions[3:]])
    expected = np.concatenate([observations + 0.05, observations[3:] + 0.01])
    about = {"simulated": simulated, "world": name, "words": WORDS, "dt": 0.02, "points": points,
             "positions": [True] * (d // 2)
             + [False] * (d // 2), "settings": {"adapt": 2, "goal": "</script><b>bold"}, "model": {"form": "hom_mean"},
             "versions": {"gce": "0.1.0"}}  # fmt: skip
    bound = np.array([[2.0], [0], [0]])
    return Details(
        about=about, observations=observations, actions=actions, goal=observations[-1], unit=np.ones(d),
        actuated=np.array([True, False, False]), low=-bound, high=bound,
        nothing=observations[::-1].copy() if simulated else np.zeros((0, n, d)),
        costs=np.linspace(3, 0, M) if simulated else np.zeros(0), edge_index=edges, node_type=np.array([0, 1, 1]),
        weights=weights, plan_at=np.array([0, 3]), plan_actions=planned, plan_observations=expected,
        operator_spectrum=np.array([0.9 + 0.1j, 0.9 - 0.1j, 0.2]), step_spectrum=np.array([1.0 + 0j]),
        fit_counts=np.array([1, 2]), fit_errors=np.array([[0.3] * M, [0.1] * M]),
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    write_details(made(), place)
    (place / "control.json").write_text(json.dumps(FIGURES))
    main(["report", str(place)])
    return place


def test_the_page_says_what_the_arrays_say():
    details = made()
    data = data_of(details, FIGURES)
    positions = details.observations[..., :2] - details.goal[..., :2]
    assert np.allclose(data["distances"][0]["real"], np.sqrt(np.square(positions).mean((1, 2))), rtol=1e-4)
    assert data["distances"][0]["real"][-1] == 0
    assert [plan["at"] for plan in data["plans"]] == [0, 3] and len(data["plans"][1]["frames"]) == 3
    assert data["pushes"][2][0] == 0.5  # an action of 1 within bounds of 2
    assert data["spectra"]["operator"] == [[0.2, 0.0], [0.9, 0.1]]
    assert np.allclose(distance(details.goal[None], details, np.ones(4, bool)), 0)


def test_a_box_is_drawn_around_its_corners_and_a_network_by_its_layout():
    boxes = data_of(made("polygons"), FIGURES)
    corners = made("polygons").observations[0, 0]
    walk = [0, 1, 2, 3, 6, 7, 4, 5]  # lower left, upper left, upper right, lower right
    assert boxes["scene"]["kind"] == "polygons" and np.allclose(boxes["frames"][0][0], corners[walk], atol=1e-4)
    network = data_of(made("network"), FIGURES)
    assert network["scene"]["kind"] == "network" and len(network["scene"]["places"]) == 3


def test_words_of_a_run_cannot_end_the_script_they_stand_in():
    text = page(made(), FIGURES)
    assert "</script><b>" not in text and "{{" not in text
    assert text.count("https://") == 0 and text.count("http://") == text.count("http://www.w3.org/2000/svg")


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_a_browser_shows_it_without_complaint(browser, folder, size):
    asked = []
    page, complaints = opened(browser, f"file://{folder}/report.html", size, "dark" if size == PHONE else "light")
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    assert all(address.startswith(("file:", "data:")) for address in asked)
    assert overflow(page) <= 0
    for part in ("distance", "cost", "actions", "fit", "operator", "step-spectrum", "motion", "goal"):
        assert page.locator(f"#{part} svg").first.bounding_box()["height"] > 100, part
    for part in ("distance", "cost", "actions", "fit"):
        assert len(page.locator(f"#{part} path.series").first.get_attribute("d")) > 20, part
    assert page.locator("#operator circle.dot-real").count() == 3
    terms, values = (page.locator(f"#figures {kind}").all_inner_texts() for kind in ("dt", "dd"))
    told = dict(zip(terms, values, strict=True))
    assert told["error at the end, |o − goal| / |goal|"] == "0.05"
    assert told["positions: rms at the end, of doing nothing"] == "0.02, 0.3 m"
    assert pale(page) == []
    assert "hom_mean" in page.locator("#model").text_content()
    assert page.locator("#settings b").count() == 0
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('p,dt,td,th,li,figcaption,.chart text')]"
        ".map((e) => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 12
    assert complaints == []
    page.close()


def test_the_slider_moves_the_picture_and_the_weights(browser, folder):
    page, complaints = opened(browser, f"file://{folder}/report.html")
    data = data_of(made(), FIGURES)

    def places():
        return page.eval_on_selector_all("#motion .body", "all => all.map((e) => e.getAttribute('cx'))")

    def widths():
        return page.eval_on_selector_all("#motion .link", "all => all.map((e) => e.getAttribute('stroke-width'))")

    before, thick = places(), widths()
    page.locator("#step").fill("4")
    assert "step 4 of 5" in page.locator("#clock").inner_text()
    assert places() != before and widths() != thick
    page.locator("#motion .body").nth(1).click(force=True)
    told = page.eval_on_selector_all("#weights-table td", "all => all.map((e) => Number(e.textContent))")
    assert abs(sum(told) - 1) < 0.01 and max(told) == max(np.array(data["weights"][4])[[1, 3, 6]])
    page.locator("#show-weights").uncheck()
    assert set(widths()) == {"1"}
    page.locator("#play").click()
    page.get_by_text("step 5 of 5").wait_for()
    page.locator("#distance svg").first.click(position={"x": 60, "y": 60})
    assert "step 0 of 5" in page.locator("#clock").inner_text()
    assert complaints == []
    page.close()


@pytest.mark.parametrize("kind", ["polygons", "network"])
def test_other_kinds_and_plans_alone_are_shown_too(browser, tmp_path, kind):
    simulated = kind == "polygons"
    (tmp_path / "page.html").write_text(page(made(kind, simulated), FIGURES if simulated else {"predicted_cost": 1.0}))
    shown, complaints = opened(browser, f"file://{tmp_path}/page.html", PHONE)
    assert overflow(shown) <= 0 and complaints == []
    assert shown.locator("#motion " + ("polygon.polygon" if simulated else "circle.network")).count() == 3
    if kind == "network":
        assert shown.locator("#goal text").all_text_contents() == [f"{float(v):.3g}" for v in made(kind).goal[:, 0]]
    assert shown.locator("#cost-card").is_visible() == shown.locator("#ghost-choice").is_visible() == simulated
    shown.close()


def test_a_fit_that_runs_away_is_told_and_not_drawn(browser, tmp_path):
    details = made()
    details.fit_errors[0] = 1e27
    (tmp_path / "page.html").write_text(page(details, FIGURES))
    shown, complaints = opened(browser, f"file://{tmp_path}/page.html")
    assert "after 1 episode the prediction runs away" in shown.locator("#fit-note").inner_text()
    assert shown.locator("#fit circle").count() == 2 and complaints == []
    assert not any("e" in text for text in shown.locator("#fit text").all_text_contents() if text[0].isdigit())
    shown.close()


def test_without_gibbs_weights_nothing_speaks_of_switching_them_off_and_keys_choose_a_node(browser, tmp_path):
    details = dataclasses.replace(made("network"), weights=np.zeros((6, 0)))
    details.about.update(words=["bus", "buses", "voltages", "p.u."], node_names=["b1", "b2", "b3"])
    (tmp_path / "page.html").write_text(page(details, FIGURES))
    shown, complaints = opened(browser, f"file://{tmp_path}/page.html")
    assert not shown.locator("#show-weights").is_visible() and "3 buses" in shown.locator("h1").inner_text()
    shown.locator("#motion").press("ArrowRight")
    shown.locator("#motion").press("ArrowRight")
    assert shown.locator("#chosen").inner_text().startswith("bus b2: ")
    assert "voltages" in shown.locator("#distance-choice").inner_text() and complaints == []
    shown.close()


def test_bad_folders_get_a_sentence_and_status_2(folder, tmp_path, capsys):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "details.npz").write_bytes((folder / "details.npz").read_bytes())
    (damaged / "control.json").write_text("{")
    for arguments, words in (
        ([str(tmp_path / "none")], "is not a folder"),
        ([str(tmp_path)], "has no details.npz"),
        ([str(damaged)], "is not JSON"),
        ([str(folder), "--out", str(tmp_path / "no" / "page.html")], "cannot write"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["report", *arguments])
        assert end.value.code == 2
        assert words in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["damaged"]


def test_of_a_large_graph_the_edges_of_most_weight_are_drawn(monkeypatch):
    monkeypatch.setattr("gce.views.report.page.LARGEST", 3)
    details = made()
    data = data_of(details, FIGURES)
    kept = np.sort(np.argsort(-details.weights.mean(0))[:3])
    assert data["edges_left_out"] == 4 and data["scene"]["edges"] == details.edge_index.T[kept].tolist()
    assert np.allclose(data["weights"], details.weights[:, kept], atol=1e-3)
