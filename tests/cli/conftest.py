"""Fixtures of the command-line tests."""

import pytest
from fork_server import processes

from stackattn.training import sweep


@pytest.fixture(autouse=True)
def _quick_processes(monkeypatch):
    """Start the processes of sweeps from a fork server, which is fast; tests of README.md and docs use the default."""
    monkeypatch.setattr(sweep, "get_context", lambda _: processes())
