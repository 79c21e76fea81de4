"""What the SLURM launcher does without a SLURM: options, the queue's answer, the job around a worker.

And the script that starts a SLURM for the tests: it opens nothing to the network.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from argparse import ArgumentError
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from chaosgate.study import Run
from chaosgate.study.execute.slurm import alive, record_job, states_of
from chaosgate.study.execute.slurm_job import SlurmOptions
from chaosgate.study.execute.state import read_json
from chaosgate.study.execute.worker import BUSY

Plan = Callable[..., list[Run]]


def parsed(*words: str) -> SlurmOptions:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--slurm", type=SlurmOptions)
    options: SlurmOptions = parser.instantiate(parser.parse_args(words)).slurm
    return options


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("partition: gpu\ntime: '1:00:00'\ncpus: 8\nextra: {mail-type: FAIL}\n")
    options = parsed("--slurm", str(file), "--slurm.cpus", "4")
    assert (options.partition, options.cpus, options.minutes) == ("gpu", 4, 60)
    assert options.extra == {"mail-type": "FAIL"}


def test_parameters_are_those_of_submitit() -> None:
    options = SlurmOptions(
        partition="gpu", time="2-00:00:00", gpus=2, cpus=8, memory=1.5, parallel=3, setup=["a", "b"]
    )
    assert options.parameters("chaosgate-x") == {
        "job_name": "chaosgate-x",
        "partition": "gpu",
        "time": 2880,
        "gpus_per_node": 2,
        "cpus_per_task": 8,
        "mem": "1536MB",
        "array_parallelism": 3,
        "signal_delay_s": 120,
        "setup": ["a", "b"],
        "additional_parameters": {"requeue": True},
    }


@pytest.mark.parametrize(
    ("time", "complaint"), [("soon", "give minutes"), ("0", "give minutes"), ("2", "never train")]
)
def test_an_impossible_time_is_refused(time: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SlurmOptions(time=time)


WRONG = (
    "partitions: gpu",
    "cpus: many",
    "cpus: 0",
    "setup: module load",
    "extra: [a]",
    "time: 1:00:00",
)


@pytest.mark.parametrize("text", WRONG)
def test_bad_files_are_refused(tmp_path: Path, text: str) -> None:
    """Also a time without quotes, which YAML reads as 3600."""
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(ArgumentError, match=text.split(":")[0]):
        parsed("--slurm", str(file))


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a squeue in front of the real one that says what it is told to; nothing makes it fail."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def say(text: str) -> None:
        script = folder / "squeue"
        script.write_text(f"#!/bin/sh\nprintf '{text}'\n" if text else "#!/bin/sh\nexit 1\n")
        script.chmod(0o755)

    return say


def test_pending_and_returning_jobs_are_alive_and_ended_or_forgotten_ones_are_not(
    squeue: Callable[[str], None],
) -> None:
    squeue(r"7_0 PENDING\n7_1 RUNNING\n7_2 CANCELLED\n8 COMPLETING\n9 REQUEUED\n")
    assert alive(["7_0", "7_1", "7_2", "7_3", "8", "9"]) == {"7_0", "7_1", "8", "9"}


def test_where_slurm_does_not_answer_jobs_count_as_alive(squeue: Callable[[str], None]) -> None:
    squeue("")
    assert alive(["7"]) == {"7"}


def test_a_run_is_queued_while_its_job_is_alive(plan: Plan, squeue: Callable[[str], None]) -> None:
    runs = plan(seeds=[0, 1])
    for run, job in zip(runs, ("7_0", "7_1", "7_2"), strict=False):
        run.directory.mkdir(parents=True)
        record_job(run, job, run.root / "slurm")
    squeue(r"7_0 PENDING\n7_1 FAILED\n")
    states = states_of(runs)
    assert [states[run.name].condition for run in runs] == [
        "queued",
        "missing",
        "missing",
        "missing",
    ]
    assert states[runs[0].name].record == {"job": "7_0"}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], "object"]:
    """Makes a job whose worker is a few lines of Python; its order is sys.argv[1]."""
    pytest.importorskip("submitit")
    from chaosgate.study.execute import slurm_job as module

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(module, "KILL_WAIT", 0.5)

    def make(program: str) -> module.RunJob:
        worker = (sys.executable, "-c", f"import os, signal, sys, time\n{program}")
        return module.RunJob(tmp_path / "run.json", tmp_path, threads=1, notice=16, worker=worker)

    yield make
    signal.signal(signal.SIGTERM, before)


SAVE = "signal.signal(signal.SIGTERM, lambda *_: (open('saved', 'a').write('x'), os._exit(143)))\n"
TRAIN_ONCE_TOLD = (
    SAVE + "open('begun', 'a').write('x')\nwhile not os.path.exists('saved'): time.sleep(0.02)"
)


def test_job_repeats_the_worker_once_and_leaves_its_last_words(
    job: Callable[[str], "object"], tmp_path: Path
) -> None:
    work = job("print('boom', file=open('log.txt', 'a')); sys.exit(3)")
    with pytest.raises(RuntimeError, match="failed 2 times"):
        work()
    record = read_json(tmp_path / "failed.json")
    assert (record["attempts"], record["status"], record["lines"]) == (2, 3, ["boom", "boom"])


def test_job_leaves_a_run_to_the_worker_that_has_it(
    job: Callable[[str], "object"], tmp_path: Path
) -> None:
    assert job(f"sys.exit({BUSY})")() == "another process is working on this run"
    assert not (tmp_path / "failed.json").exists()


def test_worker_does_not_see_the_scheduler(
    job: Callable[[str], "object"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert job("sys.exit(1 if 'SLURM_NTASKS' in os.environ else 0)")() == "done"


def test_sigterm_makes_the_worker_save_and_is_no_failure(
    job: Callable[[str], "object"], tmp_path: Path
) -> None:
    """Nobody ends the job here, so it goes on after a while: the second worker finds its work done."""
    work = job(TRAIN_ONCE_TOLD)
    threading.Thread(
        target=_once, args=[tmp_path / "begun", lambda: os.kill(os.getpid(), signal.SIGTERM)]
    ).start()
    assert work() == "done"
    assert (tmp_path / "begun").read_text() == "xx" and (tmp_path / "saved").read_text() == "x"
    assert not (tmp_path / "failed.json").exists()


def test_checkpoint_has_the_state_saved_and_gives_back_the_same_work(
    job: Callable[[str], "object"], tmp_path: Path
) -> None:
    work = job(TRAIN_ONCE_TOLD)
    back: list[object] = []

    def requeue(number: int, frame: object) -> None:
        back.append(work.checkpoint().function)
        raise InterruptedError  # as submitit, which leaves with an exception

    before = signal.signal(signal.SIGUSR2, requeue)
    try:
        threading.Thread(
            target=_once, args=[tmp_path / "begun", lambda: os.kill(os.getpid(), signal.SIGUSR2)]
        ).start()
        with pytest.raises(InterruptedError):
            work()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert back == [work] and (tmp_path / "saved").read_text() == "x"


def _once(file: Path, act: Callable[[], None]) -> None:
    deadline = time.monotonic() + 30
    # its content, too: a worker that is told to end between opening the file and closing it leaves it empty
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    act()


# -- the SLURM of the tests --------------------------------------------------------------------------------------------

SCRIPT = Path(__file__).parents[3] / "scripts" / "slurm_one_machine.sh"
COMMANDS = ("apt-get", "chown", "munged", "slurmctld", "slurmd", "sbatch", "su", "sinfo", "id")


@pytest.fixture
def started(tmp_path: Path) -> tuple[dict[str, list[str]], str]:
    """The configuration that the script writes, by key, and what it starts: commands that only note how."""
    stubs, home = tmp_path / "bin", tmp_path / "slurm"
    stubs.mkdir()
    answers = {
        "sinfo": "echo idle",
        "id": "echo 0",
        "su": f"mkdir -p {home}/munge; echo 1 > {home}/munge/munged.pid",
    }
    for name in COMMANDS:
        answer = answers.get(name, "true")
        (stubs / name).write_text(
            f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/started.txt\n{answer}\n'
        )
        (stubs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{stubs}:{os.environ['PATH']}",
        "CHAOSGATE_SLURM": str(home),
    }
    subprocess.run(
        ["bash", str(SCRIPT)], env=environment, check=True, capture_output=True, timeout=60
    )
    settings: dict[str, list[str]] = {}
    for line in (home / "slurm.conf").read_text().splitlines():
        key, _, value = line.partition("=")
        settings.setdefault(key, []).append(value)
    return settings, (tmp_path / "started.txt").read_text()


def test_daemons_listen_on_the_loopback_interface_only(
    started: tuple[dict[str, list[str]], str],
) -> None:
    settings, commands = started
    (host,), (node,) = settings["SlurmctldHost"], settings["NodeName"]
    assert host.endswith("(127.0.0.1)") and "NodeAddr=127.0.0.1" in node.split()
    # without these two, slurmd and slurmctld bind to every interface, whatever address they have
    (parameters,) = settings["CommunicationParameters"]
    assert {"NoInAddrAny", "NoCtldInAddrAny"} <= set(parameters.split(","))
    (munged,) = [line for line in commands.splitlines() if line.startswith("su ")]
    assert "munged" in munged and "--socket=" in munged  # a socket in the file system, no port
    assert "slurmctld\n" in commands and "slurmd\n" in commands
