"""Build the wheel, install it into a new virtual environment and run its commands: `python tests/wheel/check.py`.

The commands run in an empty folder, so that no file of the checkout can be used in place of one that the wheel lacks.
They include every Python block and shell command of README.md, except calls to `make`, `pip` and `git`. Packages come
from pip's usual sources in the versions of constraints.txt. Building needs the package `build`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = "plot,text"
NOT_RUN = ("make", "pip", "git")
SDIST_LIMIT, WHEEL_LIMIT = 1_500_000, 3_000_000  # bytes
NOT_IN_SDIST = ("experiments/results", "benchmarks/results", ".venv", "build/")

# These commands run after those of README.md, which include the demo. A line that does not start with `stackattn` is a
# Python program. All of them run in one process, because importing torch takes longer than most of them.
COMMANDS = """
stackattn language list
stackattn language sample dyck --length 10 -n 2
stackattn cfl train --out cfl --set language.name=dyck language.lengths=[4,12] language.train_batches=20 \\
    language.validation_batches=2 model.layers=1.superposition-8 model.d_model=8 training.max_epochs=1
stackattn analyse cfl
stackattn analyse
stackattn reproduce figure-2 --tasks dyck --models tf --restarts 1 --minutes-each 0.1 --out figure-2
stackattn language write dyck text --seed 0 --lengths 4 12 --test-lengths 4 12 --train-batches 20 \\
    --validation-batches 2 --test-per-length 2
stackattn lm prepare text/train.txt text/validation.txt text/test.txt brackets
stackattn lm train --out lm --set data.folder=brackets model.layers=1.superposition-8 model.d_model=8 \\
    training.max_epochs=1
stackattn lm evaluate lm
stackattn lm generate --model lm --number 1 --max-length 5
open('a.de', 'w').write('eins zwei\\ndrei\\n' * 20); open('a.en', 'w').write('one two\\nthree\\n' * 20)
stackattn mt prepare --train a.de a.en --validation a.de a.en --test a.de a.en --pieces 40 --threshold 2 --out corpus
stackattn mt train --out mt --set data.folder=corpus model.layers=1.superposition-8 model.d_model=8 \\
    training.max_epochs=1
stackattn mt translate mt a.de --max-tokens 4
"""


RUN_COMMANDS = """
import json, sys
from stackattn.cli import main

for command in json.loads(sys.argv[1]):
    print("$", *command, flush=True)
    if command[0] == "python":
        exec(command[-1])
    elif code := main(command[1:]):
        sys.exit(f"exit code {code}")
"""


def build(folder: Path) -> None:
    """Build a source distribution, and a wheel from it."""
    run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], ROOT)


def check_sdist(path: Path) -> None:
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    unwanted = [name for name in names if name.startswith(NOT_IN_SDIST)]
    assert not unwanted, f"{path.name}: expected no results or build files, found {unwanted[:3]}"
    for needed in ("pyproject.toml", "CMakeLists.txt", "LICENSE", "src/stackattn/ops/cpp/kernel/module.cpp"):
        assert needed in names, f"{path.name}: expected the file {needed}, found none"
    check_size(path, SDIST_LIMIT)


def check_size(path: Path, limit: int) -> None:
    size = path.stat().st_size
    assert size <= limit, f"{path.name}: expected at most {limit:,} bytes, got {size:,}"
    print(f"{path.name}: {size:,} bytes", flush=True)


def install(wheel: Path, folder: Path, system_packages: bool) -> Path:
    """Create a virtual environment with the wheel and return the folder of its programs."""
    venv.create(folder, with_pip=True, system_site_packages=system_packages)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    environment = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), **os.environ}
    if system_packages:  # adds the packages of this script's own environment; newly installed packages take precedence
        borrowed = [path for path in sys.path if path.endswith("site-packages")]
        (next(folder.glob("lib*/**/site-packages")) / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Compiling all of torch to bytecode would take longer than compiling only the modules that the commands import.
    options = ["--no-compile", *(["--no-deps"] if system_packages else [])]
    run([*pip, *options, f"{wheel}[{EXTRAS}]"], folder, environment)
    return programs


def readme_blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """The Python blocks and commands of README.md, `stackattn --version`, and COMMANDS in one process."""
    readme = [line for block in readme_blocks("sh") for line in block.splitlines()]
    ours = COMMANDS.replace("\\\n", "").strip().splitlines()
    found = [shlex.split(line) if line.startswith("stackattn ") else ["python", "-c", line] for line in ours]
    shown = [shlex.split(line, comments=True) for line in readme]
    shown = [command for command in shown if command and command[0] not in NOT_RUN]
    assert any(command[:2] == ["stackattn", "demo"] for command in shown), (
        "README.md: expected the command `stackattn demo`, found none"
    )
    blocks = ["python", "-W", "error", "-c", "\n".join(readme_blocks("python"))]
    return [blocks, *shown, ["stackattn", "--version"], ["python", "-c", RUN_COMMANDS, json.dumps(found)]]


def check_commands(programs: Path, folder: Path, kernel: bool) -> None:
    folder.mkdir()
    # without PYTHONPATH and similar variables: the installed package must be found without them
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"PATH": f"{programs}{os.pathsep}{environment['PATH']}", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    test = "import stackattn, sys; print(stackattn.__file__); s = stackattn.backends()['cpp']; "
    test += f"sys.exit(None if (s == 'available') == {kernel} else s)"
    for command in [["python", "-c", test], *commands()]:
        started = time.monotonic()
        run([str(programs / command[0]), *command[1:]], folder, environment, quiet=True)
        shown = shlex.join(command).strip().splitlines()[0][:100]
        print(f"{time.monotonic() - started:6.1f} s  {shown}", flush=True)


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None, quiet: bool = False) -> None:
    output = subprocess.PIPE if quiet else None
    done = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=600)
    if done.returncode:
        printed = done.stdout.decode(errors="replace") if quiet else ""
        sys.exit(f"exit code {done.returncode}: {shlex.join(command)}\n{printed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dist", type=Path, help="folder with built wheels and sdists (default: build them)")
    parser.add_argument(
        "--system-site-packages",
        action="store_true",
        help="use the packages of this Python instead of installing them: faster, but hides missing requirements",
    )
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stackattn-wheel-") as name:
        folder = Path(name)
        if args.dist is None:
            build(folder / "dist")
        dist = (args.dist or folder / "dist").resolve()
        for sdist in dist.glob("*.tar.gz"):
            check_sdist(sdist)
        wheel = matching_wheel(dist)
        check_size(wheel, WHEEL_LIMIT)
        programs = install(wheel, folder / "environment", args.system_site_packages)
        print(f"{time.monotonic() - started:6.1f} s  until the wheel was installed", flush=True)
        check_commands(programs, folder / "empty", kernel=not wheel.name.endswith("-none-any.whl"))
    print(f"{time.monotonic() - started:6.1f} s  in total")


def matching_wheel(dist: Path) -> Path:
    """The wheel for this Python, or else the one without the kernel."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}-"
    wheels = sorted(dist.glob("*.whl"), key=lambda path: (tag not in path.name, path.name))
    usable = [path for path in wheels if tag in path.name or "-none-any" in path.name]
    if not usable:
        sys.exit(f"{dist}: expected a wheel for {tag[:-1]} or a pure wheel, found {[path.name for path in wheels]}")
    return usable[0]


if __name__ == "__main__":
    main()
