"""The lines that show progress when the output is not a terminal."""

import time
from types import SimpleNamespace

import pytest

from stackattn.cli import progress, reproduce
from stackattn.cli.progress import Heartbeat, ProgressDisplay, status, track
from stackattn.paper.experiments import TARGETS


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.02)


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_heartbeat_describes_each_running_run(capsys):
    printed = []

    def seen(text):
        printed.append(capsys.readouterr().out)
        return text in "".join(printed)

    with ProgressDisplay() as display:
        for i in range(6):
            display(f"run {i}", evaluations=False)
        wait_for(lambda: seen("run 0  starting\nrun 1  starting\nrun 2  starting\nrun 3  starting\nand 2 more\n"))
        display.running["run 0"].on_batch(2, 5, 10, 1.5)
        wait_for(lambda: seen("run 0  epoch   3  batch 5 of 10  loss 1.5000\n"))
        display.done("run 0", "run 0: max_epochs")
        wait_for(lambda: seen("run 4  starting\nand 1 more\n"))
    assert "run 0  epoch   3" not in "".join(printed).partition("run 0: max_epochs")[2]


def test_a_shown_line_postpones_the_heartbeat(capsys, monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.2)
    with Heartbeat(lambda: "beat") as heartbeat:
        for _ in range(8):
            time.sleep(0.05)
            heartbeat.shown = time.monotonic()
    assert capsys.readouterr().out == ""


def test_a_heartbeat_ends_silently_when_its_output_is_closed():
    """An exception in the thread would be printed with its traceback, and pytest would report it."""

    class Closed:
        tried = False

        def write(self, text):
            self.tried = True
            raise BrokenPipeError

        flush = write

    file = Closed()
    with Heartbeat(lambda: "beat", file):
        wait_for(lambda: file.tried)


def test_a_status_is_repeated_on_standard_error(capsys):
    with status("reading") as update:
        wait_for(lambda: "reading ...\n" in capsys.readouterr().err)
        update("drawing")
        wait_for(lambda: "drawing ...\n" in capsys.readouterr().err)
    assert capsys.readouterr().out == ""


def test_reproduce_shows_that_it_measures(tmp_path, capsys, monkeypatch):
    def show(cells, out):
        wait_for(lambda: "measuring the best runs ...\n" in capsys.readouterr().err)
        return 0

    slow = SimpleNamespace(needs_matplotlib=False, trains=False, cells=lambda out: ["a cell"], show=show)
    monkeypatch.setitem(TARGETS, "figure-3", slow)
    args = SimpleNamespace(action="figure-3", out=tmp_path)
    assert reproduce.run(args) == 0


def test_track_prints_how_much_is_done(capsys):
    assert list(track([1, 2, 3], "short")) == [1, 2, 3]
    assert list(track(iter([1, 2]), "short")) == [1, 2]
    for i in track(range(2), "counting"):
        if i == 1:
            wait_for(lambda: "counting: 1 of 2\n" in capsys.readouterr().err)
