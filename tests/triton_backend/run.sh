#!/usr/bin/env bash
# Tests the Triton kernels without a GPU, in Triton's interpreter and by compiling them for GPUs that are not present.
# Arguments: `--full` for all tests, also those on a simulated GPU, instead of only the fast ones (about a minute), and
# versions of Triton (default: the oldest supported one). Each version is installed into its own folder in .venv-triton,
# not into .venv; pip caches the download.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=.venv/bin/python
selection=(-m "not slow")
simulated=()
if [ "${1:-}" = --full ]; then
  selection=()
  simulated=(tests/gpu/test_without_gpu.py)
  shift
fi
for version in "${@:-3.7.0}"; do
  folder=.venv-triton/$version
  if [ ! -e "$folder/installed" ]; then
    $python -m pip install --quiet --no-deps --upgrade --target "$folder" "triton==$version"
    touch "$folder/installed"
  fi
  export PYTHONPATH=$PWD/$folder
  # Two processes: the interpreter replaces the compiler.
  STACKATTN_TRITON_TESTS=interpreter TRITON_INTERPRET=1 $python -m pytest tests/triton_backend "${simulated[@]}" \
    "${selection[@]}" &
  STACKATTN_TRITON_TESTS=compiler TRITON_CACHE_DIR=$folder/cache $python -m pytest tests/triton_backend \
    "${selection[@]}"
  wait $!
done
