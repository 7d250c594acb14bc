"""Sweeps on a Ray cluster: the numbers of local processes, whatever happens to workers and nodes."""

import json
import time
from dataclasses import replace

import pytest
from runs import outcome, tiny

from stackattn.training import Run, RunError
from stackattn.training import cluster as cluster_module
from stackattn.training.cluster import run_all_on_cluster
from stackattn.training.sweep import restart, run_one

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


def jobs(folder, count, **training):
    return [(folder / f"{i:02d}", restart(tiny(**training), i)) for i in range(count)]


@pytest.fixture
def two_nodes():
    """A cluster of a head without cores and two nodes with one core each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    made.nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    yield made
    made.shutdown()


def test_a_node_killed_in_mid_run(two_nodes, tmp_path):
    chosen = jobs(tmp_path / "cluster", 3, max_epochs=150, stop_patience=1000)
    told, killed, before = [], [], {}

    class Watch:
        """Kills a node when the run on it has come some way."""

        def batch(self, *_):
            pass

        def evaluation(self, values, best):
            lines = {folder: Run(folder).metrics() for folder, _ in chosen}
            if sum(len(rows) >= 5 for rows in lines.values()) >= 2 and not killed:  # both nodes are at work
                before.update({folder: rows[:5] for folder, rows in lines.items() if len(rows) >= 5})
                killed.append(two_nodes.nodes.pop())
                two_nodes.remove_node(killed[0], allow_graceful=False)

    failed = run_all_on_cluster(
        chosen,
        two_nodes.address,
        report=lambda folder, result: told.append((folder, result["stopped"])),
        watch=lambda folder: Watch(),
    )
    assert killed
    assert failed == []
    assert sorted(told) == [(folder, "max_epochs") for folder, _ in chosen]
    for folder, rows in before.items():
        assert Run(folder).metrics()[:5] == rows  # with the times of then: what was done is not done again
    for i, (folder, config) in enumerate(chosen):
        run_one(config, tmp_path / f"local/{i}", None, None)
        assert outcome(folder) == outcome(tmp_path / f"local/{i}")
    # finished runs are not repeated, another configuration in their place and what fails on a worker are told
    other = replace(chosen[1][1], language=replace(chosen[1][1].language, name="dick"))
    told.clear()
    again = [chosen[0], (chosen[1][0], other), (tmp_path / "new", other)]
    expected = [chosen[1][0], tmp_path / "new"]
    assert run_all_on_cluster(again, two_nodes.address, report=lambda *x: told.append(x)) == expected
    assert [folder for folder, _ in told] == expected
    assert "another configuration" in told[0][1]["stopped"]
    assert told[1][1]["stopped"].startswith("failed: language: name: no language 'dick'")


def test_versions_that_differ_are_told(monkeypatch, tmp_path):
    expected = {**cluster_module.versions(), "torch": "1.0"}
    kind, reason = cluster_module._task(tiny(), ".", str(tmp_path / "run"), None, None, expected)
    assert kind == "failed"
    assert "torch" in reason
    assert "expected 1.0 as here" in reason
    assert not (tmp_path / "run").exists()


def test_a_folder_that_a_node_does_not_have_is_told(tmp_path):
    place = str(tmp_path / "elsewhere")
    kind, reason = cluster_module._task(tiny(), place, "run", None, None, cluster_module.versions())
    assert (kind, f"has no folder {place}: all nodes have to share it" in reason) == ("failed", True)


def test_a_run_that_another_worker_holds_is_waited_for(monkeypatch, tmp_path):
    """A node that was given up may go on for a moment."""
    holder = Run(tmp_path)
    holder.start(tiny(max_epochs=1), resume=False)
    monkeypatch.setattr(cluster_module, "BUSY_SECONDS", 0)
    kind, reason = cluster_module._task(tiny(max_epochs=1), ".", str(tmp_path), None, None, cluster_module.versions())
    assert (kind, "another process is working" in reason) == ("failed", True)
    monkeypatch.setattr(cluster_module, "BUSY_SECONDS", 60)
    monkeypatch.setattr(time, "sleep", lambda seconds: holder.close())
    kind, result = cluster_module._task(tiny(max_epochs=1), ".", str(tmp_path), None, None, cluster_module.versions())
    assert kind == "finished"
    assert result == json.loads((tmp_path / "result.json").read_text())


def test_a_cluster_that_is_not_there(tmp_path):
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:port"):
        with pytest.raises(RunError, match=f"cluster {address}: cannot connect: "):
            run_all_on_cluster(jobs(tmp_path, 1), address)
    assert list(tmp_path.iterdir()) == []
