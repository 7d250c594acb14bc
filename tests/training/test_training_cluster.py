"""Sweeps on a Ray cluster: the numbers of local processes, whatever happens to workers and nodes."""

import errno
import fcntl
import json
import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from runs import outcome, tiny

from stackattn.training import RunError, TrainingRun, run_experiment
from stackattn.training import cluster as cluster_module
from stackattn.training.cluster import run_all_on_cluster
from stackattn.training.sweep import restart, run_one

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


def jobs(folder, count, **training):
    return [(folder / f"{i:02d}", restart(tiny(**training), i)) for i in range(count)]


def long_jobs(folder, count):
    """Long enough to be disturbed."""
    return jobs(folder, count, max_epochs=60, stop_patience=1000)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the long jobs come to in this process."""
    chosen = long_jobs(tmp_path_factory.mktemp("local"), 3)
    for folder, config in chosen:
        run_one(config, folder, None, None)
    return [outcome(folder) for folder, _ in chosen]


class Nodes:
    """A cluster of a head without cores, and nodes with one core each."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.address = self.cluster.address
        self.nodes = []

    def have(self, count):
        while len(self.nodes) < count:
            self.nodes.append(self.cluster.add_node(num_cpus=1))
        while len(self.nodes) > count:
            self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)


@pytest.fixture(scope="module")
def shared_nodes():
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_worker_niceness", "0")  # else workers give way to all that the machine does otherwise
        made = Nodes()
        yield made
        made.cluster.shutdown()


@pytest.fixture
def two_nodes(shared_nodes, monkeypatch):
    monkeypatch.setattr(cluster_module, "POLL_SECONDS", 0.1)
    shared_nodes.have(2)
    return shared_nodes


@pytest.fixture
def logged(monkeypatch):
    lines = []
    monkeypatch.setattr(cluster_module.log, "warning", lines.append)
    return lines


class At:
    """Watches a run and does something to it, once, when it has been evaluated five times."""

    def __init__(self, action):
        self.action = action
        self.batches = []

    def on_batch(self, epoch, done, total, loss):
        self.batches.append((epoch, done, total))

    def on_evaluation(self, values, best):
        if values["evaluation"] == 5:
            self.action()


def worker_of(folder):
    """The process that has the lock of a run."""
    lock = os.path.realpath(folder / "lock")
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(opened) == lock and opened.parts[2] != str(os.getpid()):
                return int(opened.parts[2])
        except OSError:  # it has ended meanwhile
            continue
    raise AssertionError(f"no process works on {folder}")


def test_without_room_it_says_so_and_waits(shared_nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "POLL_SECONDS", 0.1)
    shared_nodes.have(0)
    said = []

    def say(line):
        said.append(line)
        shared_nodes.have(1)

    monkeypatch.setattr(cluster_module.log, "warning", say)
    chosen, address = jobs(tmp_path, 1), shared_nodes.address
    assert run_all_on_cluster(chosen, address) == []
    nothing = "GB of memory for a run; nothing starts until one joins"
    assert said == [f"cluster {address}: no node has a core and 2 {nothing}"]
    assert TrainingRun(chosen[0][0]).finished
    said.clear()
    other = jobs(tmp_path / "other", 1)
    assert run_all_on_cluster(other, address, memory=12345, minutes=0.01) == []  # it gives up when the time is over
    assert said == [f"cluster {address}: no node has a core and 12345 {nothing}"]
    assert not other[0][0].exists()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds workers in /proc")
def test_a_worker_killed_and_a_disk_full(two_nodes, undisturbed, logged, tmp_path):
    chosen, told, before = long_jobs(tmp_path / "cluster", 3), {}, {}
    killed, full, _ = (folder for folder, _ in chosen)

    def kill():
        before[killed] = TrainingRun(killed).metrics()[:5]
        os.kill(worker_of(killed), signal.SIGKILL)

    def fill():  # the system refuses to write larger files
        before[full] = TrainingRun(full).metrics()[:5]
        resource.prlimit(worker_of(full), resource.RLIMIT_FSIZE, (2000, 2000))

    def report(folder, result):
        told[folder] = result["stopped"]

    actions = {killed: At(kill), full: At(fill)}
    assert run_all_on_cluster(chosen, two_nodes.address, report=report, callback_for=actions.get) == [full]
    assert told.pop(full).startswith(f"failed: {full}: cannot write: ")
    assert list(told.values()) == ["max_epochs"] * 2
    for callback in actions.values():
        assert callback.batches[0] == (0, 1, 6)
    assert len(logged) == 1
    assert logged[0].startswith(f"{killed}: its worker was lost; ")
    # the same again: what is left goes on; other configurations, and what fails on a worker, are told
    other = replace(chosen[0][1], language=replace(chosen[0][1].language, name="dick"))
    wrong = [(killed, other), (tmp_path / "new", other)]
    told.clear()
    assert run_all_on_cluster([*wrong, *chosen[1:]], two_nodes.address, report=report) == [x for x, _ in wrong]
    assert "another configuration" in told[killed]
    assert told[tmp_path / "new"].startswith("failed: language: name: no language 'dick'")
    assert told[full] == "max_epochs"
    assert len(told) == 3
    for folder, rows in before.items():
        assert TrainingRun(folder).metrics()[:5] == rows  # with the times of then: what was done is not done again
    assert [outcome(folder) for folder, _ in chosen] == undisturbed[: len(chosen)]


def test_a_node_killed_in_mid_run(two_nodes, undisturbed, logged, tmp_path):
    chosen, before = long_jobs(tmp_path / "cluster", 2), {}

    def kill():
        """When both nodes are at work."""
        before[len(before)] = [TrainingRun(folder).metrics()[:5] for folder, _ in chosen]
        if len(before) == 2:
            two_nodes.have(1)

    assert run_all_on_cluster(chosen, two_nodes.address, callback_for=lambda folder: At(kill)) == []
    assert len(logged) == 1
    assert "its worker was lost" in logged[0]
    assert [TrainingRun(folder).metrics()[:5] for folder, _ in chosen] == before[1]
    assert [outcome(folder) for folder, _ in chosen] == undisturbed[: len(chosen)]


def test_interrupted_the_runs_end_and_go_on_another_time(two_nodes, undisturbed, tmp_path):
    chosen = long_jobs(tmp_path / "cluster", 2)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all_on_cluster(chosen, two_nodes.address, callback_for=lambda folder: At(interrupt))
    for folder, _ in chosen:
        if folder.exists():
            wait_for_the_end_of(folder)
    left = [TrainingRun(folder).metrics() for folder, _ in chosen]
    assert 5 <= max(map(len, left)) < 60
    assert run_all_on_cluster(chosen, two_nodes.address) == []
    for (folder, _), rows in zip(chosen, left, strict=True):
        kept = rows[:-1]  # the last one may have come after its checkpoint
        assert TrainingRun(folder).metrics()[: len(kept)] == kept
    assert [outcome(folder) for folder, _ in chosen] == undisturbed[: len(chosen)]


def wait_for_the_end_of(folder):
    """Until nobody has its lock."""
    for _ in range(300):
        run = TrainingRun(folder)
        try:
            run._take_lock()
            return
        except RunError:
            time.sleep(0.1)
        finally:
            run.close()
    pytest.fail(f"{folder}: somebody still works on it")


def test_versions_that_differ_are_told(two_nodes, monkeypatch, tmp_path):
    chosen, told = jobs(tmp_path / "runs", 1), []
    monkeypatch.setattr(cluster_module, "versions", lambda: {"stackattn": "0.0", "torch": "1.0", "Python": "3"})
    report = lambda folder, result: told.append(result["stopped"])  # noqa: E731
    assert run_all_on_cluster(chosen, two_nodes.address, report=report) == [chosen[0][0]]
    assert told[0].startswith("failed: ")
    assert "has stackattn " in told[0]
    assert told[0].endswith(", expected 0.0 as here")
    monkeypatch.setattr(ray, "__version__", "1.0")
    with pytest.raises(RunError, match=r"cannot connect: Version mismatch: .* This process .* Ray: 1.0 Python: "):
        run_all_on_cluster(chosen, two_nodes.address)
    assert not (tmp_path / "runs").exists()


class Nobody:
    """In the place of a board."""

    def send(self, obj):
        pass


def task(place, folder):
    """One run in this process, as on a worker."""
    config = tiny(max_epochs=1)
    return cluster_module._task(config, str(place), str(folder), None, None, cluster_module.versions(), Nobody())


def test_a_folder_that_a_node_does_not_have_is_told(tmp_path):
    kind, reason = task(tmp_path / "elsewhere", "run")
    assert kind == "failed"
    assert f"has no folder {tmp_path / 'elsewhere'}: all nodes must share it" in reason


def test_a_run_that_another_worker_holds_is_waited_for(monkeypatch, tmp_path):
    """A node that was given up may go on for a moment."""
    holder = TrainingRun(tmp_path)
    holder.start(tiny(max_epochs=1), resume=False)
    monkeypatch.setattr(cluster_module, "BUSY_SECONDS", 0)
    kind, reason = task(".", tmp_path)
    assert (kind, "another process is working" in reason) == ("failed", True)
    monkeypatch.setattr(cluster_module, "BUSY_SECONDS", 60)
    monkeypatch.setattr(time, "sleep", lambda seconds: holder.close())
    kind, result = task(".", tmp_path)
    assert kind == "finished"
    assert result == json.loads((tmp_path / "result.json").read_text())


def test_a_file_server_without_locks_is_told(monkeypatch, caplog, tmp_path):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    run_experiment(tiny(max_epochs=1), tmp_path)
    assert TrainingRun(tmp_path).finished
    told = f"{tmp_path}: no locks here (Function not implemented); make sure that no other process writes this folder"
    assert caplog.messages == [told]


def test_a_cluster_that_is_not_there(tmp_path):
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:port", "nowhere.invalid:6379", "nowhere"):
        with pytest.raises(RunError, match=f"cluster {address}: cannot connect: "):
            run_all_on_cluster(jobs(tmp_path, 1), address)
    with pytest.raises(ValueError, match="memory: expected a positive number of GB, got 0"):
        run_all_on_cluster(jobs(tmp_path, 1), "local", memory=0)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_seen_here_ends_early(two_nodes, monkeypatch, tmp_path):
    """As where nodes have disks of their own: not after all the work, which would be lost."""
    monkeypatch.setattr(cluster_module, "_seen", lambda folder: False)
    monkeypatch.setattr(cluster_module, "SEEN_SECONDS", 0)
    ((folder, config),) = jobs(tmp_path, 1, max_epochs=100_000, stop_patience=100_000)
    results = {}
    failed = run_all_on_cluster([(folder, config)], two_nodes.address, report=results.__setitem__)
    assert failed == [folder]
    assert results[folder]["stopped"] == f"failed: {cluster_module.HIDDEN}"
    assert not TrainingRun(folder).finished


def test_the_callers_own_connection_is_left_alone(two_nodes, tmp_path):
    ray.init(two_nodes.address, log_to_driver=False)
    try:
        with pytest.raises(RunError, match="this process is already connected to Ray"):
            run_all_on_cluster(jobs(tmp_path, 1), two_nodes.address)
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_memory_is_a_number(tmp_path):
    for memory in (0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="memory: expected a positive number of GB"):
            run_all_on_cluster(jobs(tmp_path, 1), "local", memory=memory)
