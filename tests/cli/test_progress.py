"""Lines that show progress where there is no terminal."""

import time

import pytest

from stackattn.cli import progress
from stackattn.cli.progress import Heartbeat, ProgressDisplay, track


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
        wait_for(lambda: seen("run 0  starting\nrun 1  starting\nrun 2  starting\nrun 3  starting\nand 2 more runs\n"))
        display.running["run 0"].on_batch(2, 5, 10, 1.5)
        wait_for(lambda: seen("run 0  epoch   3  batch 5 of 10  loss 1.5000\n"))
        display.done("run 0", "run 0: max_epochs")
        wait_for(lambda: seen("run 4  starting\nand 1 more runs\n"))
    assert "run 0  epoch   3" not in "".join(printed).partition("run 0: max_epochs")[2]


def test_a_shown_line_postpones_the_heartbeat(capsys, monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.2)
    with Heartbeat(lambda: "beat") as heartbeat:
        for _ in range(8):
            time.sleep(0.05)
            heartbeat.shown = time.monotonic()
    assert capsys.readouterr().out == ""


def test_track_prints_how_much_is_done(capsys):
    assert list(track([1, 2, 3], "short")) == [1, 2, 3]
    assert list(track(iter([1, 2]), "short")) == [1, 2]
    for i in track(range(2), "counting"):
        if i == 1:
            wait_for(lambda: "counting: 1 of 2\n" in capsys.readouterr().err)
