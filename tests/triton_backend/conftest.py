"""Tests of the Triton kernels, without a GPU: run.sh provides Triton and starts them, in two processes."""

import os

WANTED = os.environ.get("STACKATTN_TRITON_TESTS", "none")  # the interpreter, or the compiler
collect_ignore_glob = [f"test_{name}.py" for name in ("interpreter", "compiler") if name != WANTED]
