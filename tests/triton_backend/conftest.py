"""Tests of the Triton kernels without a GPU: run.sh installs Triton and runs them in two processes."""

import os

import pytest

WANTED = os.environ.get("STACKATTN_TRITON_TESTS", "none")  # or one of the keys below
FILES = {"interpreter": ("test_interpreter.py", "test_window.py"), "compiler": ("test_compiler.py",)}
collect_ignore_glob = [file for name, files in FILES.items() if name != WANTED for file in files]

# Small blocks, so that short sequences have several of them; Q = 3 does not divide a block.
SMALL = {"E": 16, "BC": 16, "BK": 16}

if WANTED == "interpreter":
    from stackattn.ops.triton_backend import availability, launches

    @pytest.fixture(autouse=True)
    def _small_blocks(monkeypatch):
        monkeypatch.setattr(launches, "_TABLE", {16: SMALL, 32: {**SMALL, "E": 32}})
        monkeypatch.setattr(launches, "_LANE_BLOCK", 64)
        monkeypatch.setattr(availability, "_agrees", lambda *_: True)

    @pytest.fixture
    def _first_use(monkeypatch):
        """Enable the check at the first use, which other tests skip."""
        monkeypatch.undo()
        availability._agrees.cache_clear()
        yield
        availability._agrees.cache_clear()
