"""What a screen reader gets of the page: chromium's accessibility tree of each view, in the order in which it is read.

Names and roles of controls, landmarks, levels of headings, heads of tables, live regions, and states while a user
types. Axe judges the markup (`test_page.py`); this is what the browser made of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette", reason="the server is not installed")

from browser import browsing
from serving import served
from test_page import JOB, VIEWS, post, ready

CONTROLS = frozenset({"button", "link", "textbox", "combobox", "checkbox", "listbox", "option", "DisclosureTriangle"})
NAMED = CONTROLS | {"image", "table", "region", "form", "navigation", "heading", "columnheader", "rowheader", "dialog"}


@dataclass
class Node:
    """A node of the tree; `inside` are its children that a reader is told of."""

    role: str
    name: str
    described: str
    states: Mapping[str, Any]
    inside: list[Node] = field(default_factory=list)

    def all(self, *roles: str) -> list[Node]:
        """It and those below it in the order of reading, or those of some roles."""
        found = [self] if self.role in roles or not roles else []
        return found + [node for child in self.inside for node in child.all(*roles)]

    def text(self) -> str:
        """What is read of it."""
        return " ".join(node.name for node in self.all("StaticText"))


def tree(page: Any) -> Node:
    """The tree that chromium gives to a screen reader."""
    session = page.context.new_cdp_session(page)
    given = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    by_id = {each["nodeId"]: each for each in given}

    def made(each: dict[str, Any]) -> list[Node]:
        inside = [node for name in each.get("childIds", []) if name in by_id for node in made(by_id[name])]
        if each["ignored"] or each["role"]["value"] in ("InlineTextBox", "none"):
            return inside
        name, described = (each.get(key, {}).get("value", "") for key in ("name", "description"))
        states = {item["name"]: item["value"].get("value") for item in each.get("properties", [])}
        return [Node(each["role"]["value"], name.strip(), described, states, inside)]

    (root,) = made(given[0])
    return root


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("server"), "--workers", "1", "--quiet") as server:
        yield server.url


@pytest.fixture(scope="module")
def seen(address: str) -> str:
    """The id of a prediction of cluster `seen`, whose third outcome is an anomaly."""
    made = post(address, "/v1/predict", {"job": JOB, "cluster": "seen"})
    for number, step_s in enumerate((0.17, 0.171, 0.5)):
        outcome = {"key": f"{number}", "step_s": step_s, "finished": True, "machine": {"host": f"node{number}"}}
        post(address, f"/v1/predictions/{made['id']}/outcomes", outcome)
    return str(made["id"])


@pytest.fixture(scope="module")
def page(address: str) -> Iterator[Any]:
    with browsing() as browser:
        found = browser.new_page(viewport={"width": 1280, "height": 900})
        found.set_default_timeout(20_000)
        yield found


def opened(page: Any, address: str, view: str, seen: str = "") -> Node:
    """The tree of a view once its answer is there, with everything unfolded."""
    state, there = VIEWS[view]
    more = {"jobs.id": seen} if view == "jobs" else {}
    page.goto("about:blank")
    page.goto(f"{address}/#/{view}?{urlencode({**state, **more})}")
    page.wait_for_selector(there)
    if view == "jobs":
        page.wait_for_selector(".detail form")
    if view == "accuracy":
        page.wait_for_selector(".cluster .chart canvas")
    for details in page.locator("details").all():
        details.evaluate("(each) => { each.open = true; }")
    return tree(page)


def in_order(text: str, words: tuple[str, ...]) -> bool:
    """Whether a text has the words one after the other."""
    at = 0
    for word in words:
        at = text.find(word, at) + len(word)
        if at < len(word):
            return False
    return True


READ = {
    "predict": ("Prediction", "resnet50, amp-bf16, 8 x a100-80gb-sxm", "Step", "ms", "P10–P90", "Run", "Cost",
                "Memory of a GPU", "Where a step goes", "forward", "backward", "sum", "Time limit for a scheduler",
                "#SBATCH --time=", "What this rests on", "Keep this prediction"),
    "compare": ("Comparison", "Precisions", "Further GPUs", "Order", "Time of one step", "amp-bf16", "job", "step",
                "P10 to P90", "Why"),
    "plan": ("Plan", "Deadline (hours)", "Budget (US dollars)", "Providers", "Launch", "Finished after", "Goal met",
             "Time and cost of the run", "option", "rented", "candidates tried"),
    "jobs": ("Jobs", "resnet50, amp-bf16", "Predicted on", "recorded on", "host node2", "Record an outcome",
             "Median step", "Record", "job", "predicted on"),
    "accuracy": ("Accuracy", "Predictions of cluster seen", "Outcomes", "Mean error", "Inside P10 to P90", "Anomalies",
                 "slower", "node2", "Accuracy board", "held out"),
}  # fmt: skip
"""What each view reads, in this order."""


@pytest.mark.parametrize("view", ["predict", *(pytest.param(name, marks=pytest.mark.slow) for name in list(VIEWS)[1:])])
def test_names_roles_and_order_of_a_view(page: Any, address: str, view: str, seen: str) -> None:
    root = opened(page, address, view, seen)
    assert [node for node in root.all(*NAMED) if not node.name] == []
    controls = Counter((node.role, node.name) for node in root.all("button", "textbox", "combobox", "checkbox"))
    assert [each for each, count in controls.items() if count > 1] == [], "controls are told from each other by name"

    parts = [node.role for node in root.all("banner", "navigation", "main")]
    assert parts == ["banner", "navigation", "main"]
    first, *_ = root.all("link")
    assert first.name == "Skip to the answer"
    (main,) = root.all("main")
    regions = [node.name for node in main.inside if node.role == "region"]
    title = READ[view][0]
    assert regions == (["Job", title] if view in ("predict", "compare", "plan") else [title])

    levels = [node.states["level"] for node in root.all("heading")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert in_order(main.inside[-1].text(), READ[view]), main.inside[-1].text()

    for table in root.all("table"):
        heads = table.all("columnheader")
        for row in table.all("row"):
            cells = [node.role for node in row.inside]
            assert "columnheader" in cells or cells[0] == "rowheader", f"{table.name}: {row.text()}"
            assert len(heads) <= len(cells) <= len(heads) + 1, f"{table.name}: {row.text()}"  # a column of buttons
    for image in root.all("image"):
        assert any(letter.isdigit() for letter in image.name), f"{image.name}: a chart says its numbers"

    (status,) = [node for node in root.inside if node.role == "status"]
    assert (status.states["live"], status.states["atomic"]) == ("polite", True)


def spoken(page: Any, words: str) -> str:
    """The status line, once it says so."""
    page.wait_for_function("(words) => document.getElementById('spoken').textContent.includes(words)", arg=words)
    (status,) = [node for node in tree(page).inside if node.role == "status"]
    return status.text()


def test_what_is_said_while_a_user_types(page: Any, address: str) -> None:
    opened(page, address, "predict")
    ready(page)
    assert "P10 to P90" in spoken(page, "Step ")
    gpu = page.get_by_label("GPU", exact=True)

    gpu.fill("h100-80gb")
    gpu.press("ArrowDown")
    root = tree(page)
    (box,) = [node for node in root.all("combobox") if node.name == "GPU"]
    assert box.states["expanded"] is True
    (listed,) = root.all("listbox")
    assert listed.name == "GPU: choices"
    chosen = [node.name for node in listed.all("option") if node.states.get("selected")]
    assert len(chosen) == 1
    assert chosen[0].startswith("h100-80gb")

    gpu.press("Escape")
    gpu.fill("a100-80gb-smx")
    gpu.press("Escape")
    page.get_by_role("button", name="a100-80gb-sxm", exact=True).wait_for()
    assert "unknown GPU 'a100-80gb-smx'" in spoken(page, "unknown GPU")
    (box,) = [node for node in tree(page).all("combobox") if node.name == "GPU"]
    assert box.states["invalid"] == "true"
    assert "a100-80gb-smx" in box.described
    page.get_by_role("button", name="a100-80gb-sxm", exact=True).click()
    assert "unknown" not in spoken(page, "Step ")
    (box,) = [node for node in tree(page).all("combobox") if node.name == "GPU"]
    assert (box.states["invalid"], box.states["focused"]) == ("false", True)


def focused(page: Any) -> tuple[str, str]:
    """Role and name of what has the focus."""
    found = [node for node in tree(page).all() if node.states.get("focused")][-1]
    return found.role, found.name


def test_the_focus_is_never_lost(page: Any, address: str, seen: str) -> None:
    """What a key removes or disables hands the focus on, and what came of it is said."""
    opened(page, address, "predict")
    page.get_by_role("button", name="Keep this prediction").press("Enter")
    assert spoken(page, "kept") == "The prediction is kept."
    role, name = focused(page)
    assert role == "link"
    page.keyboard.press("Enter")
    page.wait_for_selector(".detail form")
    assert name in page.locator(".detail").inner_text()
    assert focused(page) == ("region", "Jobs")
    page.get_by_label("Median step", exact=True).fill("130 ms")
    page.keyboard.press("Enter")
    page.get_by_role("table", name="Outcomes", exact=True).wait_for()
    assert spoken(page, "recorded") == "The outcome is recorded."
    assert focused(page) == ("region", "Outcomes")
    page.get_by_role("button", name="Close", exact=True).press("Enter")
    assert focused(page) == ("region", "Jobs")
    page.locator(".jobs tbody a").first.press("Enter")
    page.wait_for_selector(".detail form")
    assert "1 prediction" in spoken(page, "The prediction and its outcomes")
    assert focused(page) == ("region", "Prediction and outcomes")


@pytest.mark.slow
def test_a_plan_leaves_the_focus_where_it_was(page: Any, address: str) -> None:
    opened(page, address, "plan")
    page.get_by_label("Numbers of GPUs", exact=True).fill("8,16")
    page.get_by_role("button", name="Plan", exact=True).press("Enter")
    page.locator("button[aria-disabled]").wait_for(state="detached")
    assert focused(page) == ("button", "Plan")
    assert "8 x" in spoken(page, "Launch ")


@pytest.mark.slow
def test_a_new_view_is_where_reading_goes_on(page: Any, address: str, seen: str) -> None:
    opened(page, address, "predict")
    page.locator("#cluster").fill("seen")
    page.locator("#cluster").press("Tab")
    for view, title, words in (("Jobs", "Jobs", "1 prediction."), ("Accuracy", "Accuracy", "3 outcomes, mean error")):
        page.get_by_role("link", name=view, exact=True).press("Enter")
        assert spoken(page, words).startswith("Cluster seen: ")
        assert focused(page) == ("region", title)
        assert tree(page).name.startswith(title)
    assert "1 anomaly." in spoken(page, "Cluster seen: ")
