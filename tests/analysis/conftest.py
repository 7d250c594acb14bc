"""Run folders of untrained models (the analysis does not need good models), and a browser."""

import json
import shutil

import pytest

from stackattn.config import from_values, to_values
from stackattn.models import save
from stackattn.training.cfl import CFLConfig

MODELS = {
    "tf-nd": {"layers": "1.nondeterministic-2-2-3", "d_model": 8, "heads": 2},
    "tf-nd-2": {"layers": "2.nondeterministic-2-2-3", "d_model": 8, "heads": 2},
    "tf-sup": {"layers": "superposition-4", "d_model": 8, "heads": 2},
    "tf-both": {"layers": "superposition-4x2.nondeterministic-2-2-3", "d_model": 8, "heads": 2},
    "tf": {"layers": "1", "d_model": 8, "heads": 2},
    "lstm-nd": {"kind": "lstm", "hidden_size": 6, "stack": "nondeterministic-2-3-3"},
    "lstm-sup": {"kind": "lstm", "hidden_size": 6, "stack": "superposition-3"},
}

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def saved_models(tmp_path_factory):
    """Return a function that saves the model of a configuration, once, and returns its folder."""
    folders = {}

    def saved(config):
        key = json.dumps(to_values(config), sort_keys=True)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("model") / "best"
            save(config.build_model(len(config.language.make().symbols)), folders[key])
        return folders[key]

    return saved


@pytest.fixture
def make_run(tmp_path, saved_models):
    """Return a function that creates the folder of a run with two evaluations, or with none if `best` is False."""

    def make(model="tf-nd", language="dyck", folder="run", best=True, seed=0, lengths=(6, 12)):
        values = {
            "language": {"name": language, "lengths": list(lengths)},
            "model": MODELS[model],
            "training": {"learning_rate": 0.01, "init_seed": seed},
        }
        config = from_values(CFLConfig, values)
        path = tmp_path / folder
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(to_values(config)))
        rows = [
            {
                "evaluation": e,
                "epoch": e,
                "score": 2 - e / 4,
                "cross_entropy": 2 - e / 4,
                "train_loss": 9.0,
                "cross_entropy_difference": 0.9 - e / 4 + seed / 100,
                "learning_rate": 0.01,
                "seconds": 60.0 * e,
                "examples": 100 * e,
            }
            for e in (1, 2)
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows if best))
        if best:
            shutil.copytree(saved_models(config), path / "best")
        return path

    return make


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as running:
        # containers have no user namespaces for the sandbox, and the page is trusted
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pages(browser):
    """Return a function that returns a page with the given options, and creates it once: a page starts a process."""
    found = {}

    def page(**options):
        key = json.dumps(options, sort_keys=True)
        if key not in found:
            found[key] = browser.new_context(**options).new_page()
            found[key].set_default_timeout(10_000)
        return found[key]

    return page


@pytest.fixture
def open_page(pages):
    """Return a function that opens a file. Network access, console output, dialogs and errors make the test fail."""
    used, problems = [], []
    listeners = {
        "console": lambda message: problems.append(message.text),
        "pageerror": lambda error: problems.append(str(error)),
        "dialog": lambda dialog: problems.append(dialog.message),
        "request": lambda request: None if request.url.startswith("file:") else problems.append(request.url),
    }

    def open_page(path, **options):
        page = pages(**{"viewport": {"width": 1280, "height": 900}, **options})
        if page not in used:
            used.append(page)
            for event, listener in listeners.items():
                page.on(event, listener)
        page.goto(path.as_uri())
        return page

    yield open_page
    for page in used:
        page.mouse.move(0, 0)
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        page.goto("about:blank")
    assert problems == []
