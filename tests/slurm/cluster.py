"""A SLURM cluster of one node on this machine, in a temporary folder: munged, slurmctld and slurmd.

The configuration, the state and the logs are in that folder, all daemons listen on 127.0.0.1 only, and no root
privileges are needed.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo")
SYSTEM_FOLDERS = "/usr/sbin:/sbin"  # contain the daemons; an ordinary user's PATH may lack them

REQUEUE_DELAY = 5  # seconds that a requeued job waits (`cred_expire`); SLURM's default is two minutes
CONFIGURATION = """
ClusterName=stackattn
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={delay}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=300
SlurmdTimeout=10
KillWait=2
InactiveLimit=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """The programs of SLURM and MUNGE that are not installed."""
    return [name for name in DAEMONS + COMMANDS if _find(name) is None]


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}")


def wait_until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Poll a condition; raise TimeoutError, with `what` in the message, if it does not hold within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected {what} within {seconds:g} seconds")
        time.sleep(0.25)


class Cluster:
    """Context manager that starts the daemons on entry, and ends them and all jobs on exit.

    `folder` must exist; the node has `cpus` cores and `memory` MB. `environment` is the environment in which jobs are
    submitted.
    """

    def __init__(self, folder: Path, cpus: int, memory: int):
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._processes: dict[str, subprocess.Popen] = {}
        self._cpus, self._memory = cpus, memory

    def __enter__(self) -> Cluster:
        try:
            self._configure()
            self._start_munge()
            self._start("slurmctld", "-D", "-i")
            self.start_node()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _configure(self) -> None:
        for name in ("state", "spool", "logs"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)  # munged refuses a socket in a folder that other users cannot enter
        text = CONFIGURATION.format(
            host=socket.gethostname().split(".")[0],
            user=getpass.getuser(),
            folder=self.folder,
            delay=REQUEUE_DELAY,
            controller_port=_free_port(),
            node_port=_free_port(),
            cpus=self._cpus,
            memory=self._memory,
        )
        (self.folder / "slurm.conf").write_text(text)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{ending}" for option, ending in files.items()]
        self._start("munged", "--foreground", "--force", *options)
        wait_until((self.folder / "munge.socket").exists, "the socket of munged", 10)

    def start_node(self) -> None:
        """Start slurmd and wait until the node accepts jobs."""
        self._start("slurmd", "-D")
        wait_until(
            lambda: self._run("sinfo", "-h", "-o", "%t") in ("idle", "mix"), self._logs("a node that accepts jobs"), 30
        )

    def lose_node(self) -> None:
        """Kill slurmd and every process of its jobs, as a power failure would."""
        self._processes["slurmd"].kill()
        self._processes.pop("slurmd").wait()
        self._kill_jobs()

    def submit(self, script: Path, *options: str) -> str:
        """Submit a script and return the ID of the job, or of the array."""
        command = ["sbatch", "--parsable", f"--chdir={self.folder}", *options, str(script)]
        return self._call(*command).stdout.strip()

    def job(self, name: str) -> dict[str, str]:
        """The fields that `scontrol` shows for a job or an array task (ARRAY_TASK); empty if there is no such job."""
        text = self._run("scontrol", "show", "job", "-o", name)
        return dict(field.split("=", 1) for field in text.split() if "=" in field)

    def requeue(self, name: str) -> None:
        self._call("scontrol", "requeue", name)

    def cancel(self, *names: str) -> None:
        self._run("scancel", *names)

    def wait_for(self, name: str, *states: str, seconds: float) -> str:
        """Wait until a job has one of the states, and return that state."""
        wait_until(lambda: self.job(name).get("JobState") in states, f"job {name} to be {' or '.join(states)}", seconds)
        return self.job(name)["JobState"]

    def __exit__(self, *_: object) -> None:
        if "slurmctld" in self._processes:
            self.cancel("--user", getpass.getuser())
        for name in reversed(DAEMONS):
            if process := self._processes.pop(name, None):
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._kill_jobs()

    def _kill_jobs(self) -> None:
        while left := self._job_processes():
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.1)

    def _job_processes(self) -> set[int]:
        """Processes of the jobs, which have `SLURM_CONF` in their environment, and the slurmstepd that started each."""
        mark, found = os.fsencode(f"SLURM_CONF={self.folder}/slurm.conf"), set()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if Path(f"/proc/{parent}/comm").read_text() == "slurmstepd\n":
                    found.add(parent)
                found.add(int(entry.name))
            except OSError:  # the process has ended, or belongs to another user
                continue
        return found - {process.pid for process in self._processes.values()}

    def _start(self, name: str, *arguments: str) -> None:
        program = _find(name)
        assert program is not None
        with open(self.folder / "logs" / name, "ab") as log:
            self._processes[name] = subprocess.Popen(
                [program, *arguments], env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def _logs(self, what: str) -> str:
        return f"{what} (logs of the daemons: {self.folder}/logs)"

    def _run(self, *command: str) -> str:
        """Return standard output, or "" if the command fails: the controller may not be ready yet."""
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        return result.stdout.strip() if result.returncode == 0 else ""

    def _call(self, *command: str) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {result.returncode}: {result.stderr.strip()}")
        return result


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
