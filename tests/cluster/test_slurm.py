"""Slurm on one node: its daemons are started here, where they are installed."""

import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
from test_crew import LONG, digest, free_port, plain  # noqa: F401

NEEDED = ("slurmctld", "slurmd", "munged", "mungekey", "sinfo")
MISSING = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"no Slurm here ({', '.join(MISSING)}; Debian: slurmctld slurmd munge)"),
    pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="Slurm's daemons are started by root"),
]
SETTINGS = """ClusterName=one
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
MpiDefault=none
SlurmctldPort={first}
SlurmdPort={second}
NodeName={host} CPUs=2 RealMemory=3000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
OPTIONS = """jobqueue:
  slurm:
    cores: 1
    processes: 1
    memory: 1GB
    walltime: "00:10:00"
    interface: lo
    log-directory: {folder}
"""


@pytest.fixture
def slurm(tmp_path):
    """The environment in which there is a Slurm of one node."""
    for name in ("state", "spool"):
        (tmp_path / name).mkdir()
    host, key = socket.gethostname().split(".")[0], tmp_path / "munge.key"
    values = {"host": host, "folder": tmp_path, "first": free_port(), "second": free_port()}
    (tmp_path / "slurm.conf").write_text(SETTINGS.format(**values))
    (tmp_path / "jobqueue.yaml").write_text(OPTIONS.format(folder=tmp_path))
    environment = {
        **os.environ,
        "PATH": f"{os.environ['PATH']}:/usr/sbin",
        "SLURM_CONF": str(tmp_path / "slurm.conf"),
        "DASK_CONFIG": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run(["/usr/sbin/mungekey", "-c", "-k", key], check=True)
    files = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
    munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
    munge += [f"--{name}={tmp_path / file}" for name, file in files.items()]
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    daemons = [subprocess.Popen(command, **quiet) for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D"])]
    try:
        until = time.monotonic() + 60
        while "idle" not in subprocess.run(["sinfo", "-h"], env=environment, capture_output=True, text=True).stdout:
            if time.monotonic() > until or any(daemon.poll() is not None for daemon in daemons):
                pytest.skip("Slurm is installed, but its daemons do not start here")
            time.sleep(0.5)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(timeout=30)


def test_jobs_of_slurm_record_the_same_bytes_and_are_gone_at_the_end(tmp_path, slurm, plain):  # noqa: F811
    out = tmp_path / "x.h5"
    command = [sys.executable, "-m", "gce", *LONG, "--out", out, "--on", "slurm", "--workers", "2"]
    ended = subprocess.run(command, env=slurm, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert digest(out) == plain
    assert len(list(tmp_path.glob("dask-worker-*.out"))) == 2
    until = time.monotonic() + 30
    while subprocess.run(["squeue", "-h"], env=slurm, capture_output=True, text=True).stdout.strip():
        assert time.monotonic() < until
        time.sleep(0.5)
