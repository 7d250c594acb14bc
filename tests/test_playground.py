"""The playground page in a browser: its numbers are those of the library. Needs Playwright and Chromium."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from stackattn import best_runs, nondeterministic_weights, superposition_weights

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]
STATIC = Path(__file__).parents[1] / "docs/_static"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A browser page with the HTML of the playground, which must not use the network, raise errors or log text."""
    fragment = (STATIC / "playground/playground.html").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("playground") / "page.html"
    fragment = fragment.replace("../_static/", f"{STATIC.as_uri()}/")
    path.write_text(f"<!doctype html><meta charset='utf-8'>{fragment}", encoding="utf-8")
    problems = []
    with playwright.sync_playwright() as running:
        # containers have no user namespaces for the sandbox, and the page is trusted
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
        page.goto(path.as_uri())
        yield page
        browser.close()
    assert problems == []


def shown(page, text, **sliders):
    """What the page computes for an input and the given positions of its sliders."""
    for name, value in sliders.items():
        page.eval_on_selector(f"#playground-{name}", "(node, value) => { node.value = value; }", value)
    page.fill("#playground-text", text)
    return page.evaluate("playground.shown")


def transitions(found):
    """Log weights in the layout of the library: one sequence, one state."""
    push, replace, pop = (
        torch.tensor([step[name] for step in found["transitions"]], dtype=torch.float64)
        for name in ("push", "replace", "pop")
    )
    return push[None, :, None, :, None], replace[None, :, None, :, None], pop[None, :, None, :, None]


@pytest.mark.parametrize("text", ["(", "([])(.)", "((((]])+-.", ")(", "+.+.--"])
@pytest.mark.parametrize("sliders", [{"noise": 0.8, "push": 4, "pop": 4}, {"noise": 3, "push": 0, "pop": 8, "seed": 5}])
def test_the_numbers_are_those_of_the_library(page, text, sliders):
    found = shown(page, text, **sliders)
    assert found["text"] == list(text)
    actions = torch.tensor([found["actions"]], dtype=torch.float64)
    rows = torch.tensor([levels[0] for levels in found["levels"]], dtype=torch.float64)
    torch.testing.assert_close(rows, superposition_weights(actions)[0])
    weights = nondeterministic_weights(*transitions(found))[0, :, :, 0]  # (T, T + 1, S)
    for t, row in enumerate(found["weights"]):
        torch.testing.assert_close(torch.tensor(row, dtype=torch.float64), weights[t, : t + 2])
    (best,) = best_runs(*transitions(found))
    assert found["runs"][0] == [
        {"kind": step.kind, **({} if step.symbol is None else {"symbol": step.symbol})} for step in best.operations
    ]
    stacks = page.evaluate("stacksOf(playground.shown.runs[0])")
    assert stacks == [[list(element) for element in stack] for stack in best.stacks()]


def test_samples_follow_the_weights(page):
    """The top of the last stack in many sampled runs is distributed according to the weights; the seed is fixed."""
    found = shown(page, "(.)[", noise=1.5, push=1, pop=1, seed=3)
    count = 4000
    tops = page.evaluate(
        """(count) => {
          const ring = sampler(generator(7));
          return Array.from({ length: count }, () => {
            const stacks = stacksOf(findRun(playground.shown.transitions, ring));
            return stacks[stacks.length - 1].at(-1)[0] + 1;
          });
        }""",
        count,
    )
    expected = nondeterministic_weights(*transitions(found))[0, -1].sum((-2, -1)).tolist()
    for i, share in enumerate(expected):
        assert abs(tops.count(i) / count - share) < 4 * math.sqrt(share * (1 - share) / count) + 1e-9


def test_the_page_follows_its_input(page):
    found = shown(page, "([x]) ignored", noise=0, push=8, keep=8, pop=8)
    assert found["text"] == list("([])")
    assert page.locator("#playground-tape button").count() == 4
    assert page.locator("#playground-superposition rect").count() == 4 * 4
    assert page.locator("#playground-nondeterministic rect").count() == 4 * 5
    page.locator("#playground-tape button").nth(1).click()
    assert page.inner_text("#playground-stack").startswith("top    : 100 % [1")
    assert page.inner_text("#playground-runs").startswith("best run: push [     stack ⊥ (0 [1")
    page.locator("#playground-tape button").nth(3).click()
    assert page.inner_text("#playground-stack") == "top    : 100 % empty"
    page.click("#playground-again")
    assert page.input_value("#playground-seed") != "0"
    shown(page, "")
    assert page.inner_text("#playground-runs") == ""
