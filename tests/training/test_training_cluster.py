"""Sweeps on a Ray cluster: the same results as without a cluster, even if workers or nodes fail."""

import errno
import fcntl
import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from runs import outcome, tiny

from stackattn import __version__, files
from stackattn.training import RunError, TrainingRun, run_experiment
from stackattn.training import cluster as cluster_module
from stackattn.training.cluster import run_all_on_cluster
from stackattn.training.sweep import restart, run_one

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


def jobs(folder, count, **training):
    return [(folder / f"{i:02d}", restart(tiny(**training), i)) for i in range(count)]


def long_jobs(folder, count):
    """Return jobs that run long enough for the tests to interrupt them."""
    return jobs(folder, count, max_epochs=60, stop_patience=1000)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Outcomes of the long jobs when they run in this process."""
    chosen = long_jobs(tmp_path_factory.mktemp("local"), 3)
    for folder, config in chosen:
        run_one(config, folder, None, None)
    return [outcome(folder) for folder, _ in chosen]


class Nodes:
    """A cluster of a head node without cores and other nodes with one core each."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.address = self.cluster.address
        self.nodes = []

    def have(self, count):
        """Add or kill nodes until there are `count` nodes besides the head node."""
        while len(self.nodes) < count:
            self.nodes.append(self.cluster.add_node(num_cpus=1))
        while len(self.nodes) > count:
            self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)


@pytest.fixture(scope="module")
def shared_nodes():
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_worker_niceness", "0")  # otherwise workers have a lower priority than other processes
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


class AtFifthEvaluation:
    """Callback that records batches, and calls `action` after the fifth evaluation."""

    def __init__(self, action):
        self.action = action
        self.batches = []

    def on_batch(self, epoch, done, total, loss):
        self.batches.append((epoch, done, total))

    def on_evaluation(self, values, best):
        if values["evaluation"] == 5:
            self.action()


def worker_of(folder):
    """Return the id of the process that has locked a run."""
    lock = os.path.realpath(folder / "lock")
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(opened) == lock and opened.parts[2] != str(os.getpid()):
                return int(opened.parts[2])
        except OSError:  # the process has ended in the meantime
            continue
    raise AssertionError(f"no process has locked {folder}")


def test_waits_for_a_node_with_enough_resources(shared_nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "POLL_SECONDS", 0.1)
    shared_nodes.have(0)
    warnings = []

    def warn(line):
        warnings.append(line)
        shared_nodes.have(1)

    monkeypatch.setattr(cluster_module.log, "warning", warn)
    chosen, address = jobs(tmp_path, 1), shared_nodes.address
    assert run_all_on_cluster(chosen, address) == []
    rest = "GB of memory for a run; runs start when such a node joins"
    assert warnings == [f"cluster {address}: no node has a core and 2 {rest}"]
    assert TrainingRun(chosen[0][0]).finished
    warnings.clear()
    other = jobs(tmp_path / "other", 1)
    assert run_all_on_cluster(other, address, memory=12345, minutes=0.01) == []  # gives up when the time is up
    assert warnings == [f"cluster {address}: no node has a core and 12345 {rest}"]
    assert not other[0][0].exists()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds workers in /proc")
def test_a_killed_worker_and_a_full_disk(two_nodes, undisturbed, logged, tmp_path):
    chosen, reported, before = long_jobs(tmp_path / "cluster", 3), {}, {}
    killed, full, _ = (folder for folder, _ in chosen)

    def kill():
        before[killed] = TrainingRun(killed).metrics()[:5]
        os.kill(worker_of(killed), signal.SIGKILL)

    def fill():  # the operating system limits the size of the worker's files
        before[full] = TrainingRun(full).metrics()[:5]
        resource.prlimit(worker_of(full), resource.RLIMIT_FSIZE, (2000, 2000))

    def report(folder, result):
        reported[folder] = result["stopped"]

    actions = {killed: AtFifthEvaluation(kill), full: AtFifthEvaluation(fill)}
    assert run_all_on_cluster(chosen, two_nodes.address, report=report, callback_for=actions.get) == [full]
    stopped = reported.pop(full)
    assert stopped.startswith(f"failed: {full}/")  # the file that has reached the limit
    assert ": cannot write: " in stopped
    assert list(reported.values()) == ["max_epochs"] * 2
    for callback in actions.values():
        assert callback.batches[0] == (0, 1, 6)
    assert len(logged) == 1
    assert logged[0].startswith(f"{killed}: its worker was lost; ")
    # The second time, unfinished runs are resumed; other configurations and errors on workers are reported.
    other = replace(chosen[0][1], language=replace(chosen[0][1].language, name="dick"))
    wrong = [(killed, other), (tmp_path / "new", other)]
    reported.clear()
    assert run_all_on_cluster([*wrong, *chosen[1:]], two_nodes.address, report=report) == [x for x, _ in wrong]
    assert "another configuration" in reported[killed]
    assert reported[tmp_path / "new"].startswith("failed: language.name: expected one of marked-reversal, ")
    assert reported[full] == "max_epochs"
    assert len(reported) == 3
    for folder, rows in before.items():
        assert TrainingRun(folder).metrics()[:5] == rows  # with the same times: finished epochs are not repeated
    assert [outcome(folder) for folder, _ in chosen] == undisturbed[: len(chosen)]


def test_a_killed_node(two_nodes, undisturbed, logged, tmp_path):
    chosen, before = long_jobs(tmp_path / "cluster", 2), {}

    def kill():
        """Remove a node once both nodes are training."""
        before[len(before)] = [TrainingRun(folder).metrics()[:5] for folder, _ in chosen]
        if len(before) == 2:
            two_nodes.have(1)

    assert run_all_on_cluster(chosen, two_nodes.address, callback_for=lambda folder: AtFifthEvaluation(kill)) == []
    assert ["its worker was lost" in line for line in logged if "lost node" not in line] == [True]
    assert [TrainingRun(folder).metrics()[:5] for folder, _ in chosen] == before[1]
    assert [outcome(folder) for folder, _ in chosen] == undisturbed[: len(chosen)]


def test_runs_can_be_resumed_after_an_interrupt(two_nodes, undisturbed, tmp_path):
    chosen = long_jobs(tmp_path / "cluster", 2)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all_on_cluster(chosen, two_nodes.address, callback_for=lambda folder: AtFifthEvaluation(interrupt))
    for folder, _ in chosen:
        if folder.exists():
            wait_until_unlocked(folder)
    left = [TrainingRun(folder).metrics() for folder, _ in chosen]
    assert 5 <= max(map(len, left)) < 60
    assert run_all_on_cluster(chosen, two_nodes.address) == []
    for (folder, _), rows in zip(chosen, left, strict=True):
        kept = rows[:-1]  # the last row may be newer than the last checkpoint
        assert TrainingRun(folder).metrics()[: len(kept)] == kept
    assert [outcome(folder) for folder, _ in chosen] == undisturbed[: len(chosen)]


def wait_until_unlocked(folder):
    """Wait until no process has locked the run."""
    for _ in range(300):
        run = TrainingRun(folder)
        try:
            run._take_lock()
            return
        except RunError:
            time.sleep(0.1)
        finally:
            run.close()
    pytest.fail(f"{folder}: still locked")


def test_different_versions_are_reported(two_nodes, monkeypatch, tmp_path):
    chosen, reported = jobs(tmp_path / "runs", 1), []
    monkeypatch.setattr(cluster_module, "versions", lambda: {"stackattn": "0.0", "torch": "1.0", "Python": "3"})
    report = lambda folder, result: reported.append(result["stopped"])  # noqa: E731
    assert run_all_on_cluster(chosen, two_nodes.address, report=report) == [chosen[0][0]]
    assert reported[0].startswith("failed: ")
    assert f"expected stackattn 0.0 on all nodes, found {__version__} on " in reported[0]
    monkeypatch.setattr(ray, "__version__", "1.0")
    with pytest.raises(RunError, match=r"cannot connect: Version mismatch: .* This process .* Ray: 1.0 Python: "):
        run_all_on_cluster(chosen, two_nodes.address)
    assert not (tmp_path / "runs").exists()


class SilentBoard:
    """A board that ignores messages."""

    def send(self, obj):
        pass


def task(place, folder):
    """Run the task of a worker in this process."""
    config = tiny(max_epochs=1)
    expected, board = cluster_module.versions(), SilentBoard()
    return cluster_module._task(config, str(place), str(folder), None, None, expected, board, "cpu")


def test_a_folder_missing_on_a_node_is_reported(tmp_path):
    kind, reason = task(tmp_path / "elsewhere", "run")
    assert kind == "failed"
    assert reason.startswith(f"expected the folder {tmp_path / 'elsewhere'} on all nodes, found none on ")


def test_waits_for_a_run_that_another_worker_has_locked(monkeypatch, tmp_path):
    """A node that was considered lost may continue for a moment."""
    holder = TrainingRun(tmp_path)
    holder.start(tiny(max_epochs=1), resume=False)
    monkeypatch.setattr(cluster_module, "BUSY_SECONDS", 0)
    kind, reason = task(".", tmp_path)
    assert (kind, "another process is training" in reason) == ("failed", True)
    monkeypatch.setattr(cluster_module, "BUSY_SECONDS", 60)
    monkeypatch.setattr(time, "sleep", lambda seconds: holder.close())
    kind, result = task(".", tmp_path)
    assert kind == "finished"
    assert result == TrainingRun(tmp_path).result()


def test_a_file_system_without_locks_is_reported(monkeypatch, caplog, tmp_path):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(files, "_without_locks", set())
    run_experiment(tiny(max_epochs=1), tmp_path)
    assert TrainingRun(tmp_path).finished
    locks = "the file system has no locks (Function not implemented)"
    assert caplog.messages == [f"{tmp_path}: {locks}; make sure that no other process writes to this folder"]


def test_cannot_connect(tmp_path):
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:port", "nowhere.invalid:6379", "nowhere"):
        with pytest.raises(RunError, match=f"cluster {address}: cannot connect: "):
            run_all_on_cluster(jobs(tmp_path, 1), address)
    with pytest.raises(ValueError, match="memory: expected a positive number of GB, got 0"):
        run_all_on_cluster(jobs(tmp_path, 1), "local", memory=0)
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_folder_is_not_shared_ends_early(two_nodes, monkeypatch, tmp_path):
    """If nodes do not share the disk, the run ends at once instead of losing all its work at the end."""
    monkeypatch.setattr(cluster_module, "_seen", lambda folder: False)
    monkeypatch.setattr(cluster_module, "SEEN_SECONDS", 0)
    ((folder, config),) = jobs(tmp_path, 1, max_epochs=100_000, stop_patience=100_000)
    results = {}
    failed = run_all_on_cluster([(folder, config)], two_nodes.address, report=results.__setitem__)
    assert failed == [folder]
    assert results[folder]["stopped"] == f"failed: {cluster_module.HIDDEN}"
    assert not TrainingRun(folder).finished


def test_an_existing_connection_to_ray_is_kept(two_nodes, tmp_path):
    ray.init(two_nodes.address, log_to_driver=False)
    try:
        with pytest.raises(RunError, match="this process is already connected to Ray"):
            run_all_on_cluster(jobs(tmp_path, 1), two_nodes.address)
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_invalid_memory(tmp_path):
    for memory in (0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="memory: expected a positive number of GB"):
            run_all_on_cluster(jobs(tmp_path, 1), "local", memory=memory)


def listening_sockets():
    """Map each listening TCP socket of this machine, as named in /proc, to its local address in hexadecimal."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            _, local, _, status, *_, inode = row.split()[:10]
            if status == "0A":
                found[f"socket:[{inode}]"] = local.split(":")[0]
    return found


def test_a_local_cluster_listens_on_the_loopback_address_only(tmp_path):
    """The command lines of Ray's processes contain the folder of its session."""
    found = []

    def report(folder, result):
        session = ray._private.worker.global_worker.node.get_session_dir_path()
        sockets = listening_sockets()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if process.name == str(os.getpid()) or session in (process / "cmdline").read_text():
                    opened = {os.readlink(path) for path in (process / "fd").iterdir()}
                    found.extend(sockets[name] for name in opened & sockets.keys())
            except OSError:  # the process has ended in the meantime
                continue

    assert run_all_on_cluster(jobs(tmp_path, 1), "local", report=report) == []
    assert len(found) >= 2
    assert set(found) <= {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1
