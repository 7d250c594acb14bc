#!/usr/bin/env bash
# Runs the operator tests with a kernel that is built with AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   tests/sanitizers.sh                 the fast tests in tests/ops (several minutes)
#   tests/sanitizers.sh -k states       arguments are passed to pytest
#   tests/sanitizers.sh --drill         the drills `operators` and `layers` instead, with any further arguments
#
# The build goes to build/sanitize and shadows the installed kernel for the tests; the installation is not changed.
# Before the tests, two deliberate errors must be reported: a read beyond the end of an array, and a signed overflow. If
# one is not reported, the sanitizers are not active, and the script fails. Leaks are not checked, because Python leaks.
# STACKATTN_KERNEL=portable, avx2 or avx512 selects the instruction set, as usual. Needs GCC or Clang with libasan and
# libubsan.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
build=$PWD/build/sanitize
compiler=${CXX:-c++}

venv=$build/venv # cmake, ninja and nanobind, which an installed stackattn does not need
if ! [ -x "$venv/bin/cmake" ]; then
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install -q cmake ninja "nanobind>=2.4"
fi
"$venv/bin/cmake" -S . -B "$build/cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$venv/bin/ninja" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_COMPILER="$compiler" -DPython_EXECUTABLE="$venv/bin/python" -DSTACKATTN_SANITIZE=ON >"$build/cmake.log"
"$venv/bin/cmake" --build "$build/cmake"
kernel=$(echo "$build"/cmake/_kernel*.so)

# A copy of the package with the sanitized kernel. The tests run in $venv, with PYTHONPATH for the dependencies: in the
# environment of $python, the import hook of an editable install would load the installed kernel.
package=$build/package
rm -rf "$package" && mkdir -p "$package"
cp -r src/stackattn "$package/"
cp "$kernel" "$package/stackattn/ops/cpp/"

site=$("$python" -c "import sys; print(':'.join(path for path in sys.path if 'site-packages' in path))")
libasan=$("$compiler" -print-file-name=libasan.so)
libubsan=$("$compiler" -print-file-name=libubsan.so)
run() {
  PYTHONPATH="$package:$site" OMP_NUM_THREADS=2 LD_PRELOAD="$libasan $libubsan" \
    ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:malloc_context_size=8:allocator_may_return_null=1 \
    UBSAN_OPTIONS=print_stacktrace=1 \
    "$venv/bin/python" "$@"
}

run -c "
import stackattn.ops.dispatch as d
assert d.kernel.__file__.startswith('$package'), f'expected the kernel in $package, loaded {d.kernel.__file__}'
assert d.kernel.read_beyond(7) == 1.0"
must_report() { # arguments: the expected report, the call that makes a deliberate error
  if run -c "import stackattn.ops.dispatch as d; d.kernel.$2" >"$build/control.log" 2>&1 ||
    ! grep -q "$1" "$build/control.log"; then
    echo "sanitizers.sh: expected $2 to fail with the report '$1'; see $build/control.log" >&2
    exit 1
  fi
  echo "control: $2 was reported as $1"
}
must_report heap-buffer-overflow "read_beyond(8)"
must_report "signed integer overflow" "overflow(1)"

if [ "${1:-}" = --drill ]; then
  run -m drills operators layers "${@:2}"
  exit
fi
# Sanitizers make the kernel several times slower, so a test of its speed would fail.
run -m pytest -p no:cacheprovider -m "not slow" \
  --deselect tests/ops/test_runs.py::test_100_steps_take_less_than_1500_ms tests/ops "$@"
