"""Thirty faults in real runs: whoever comes next leaves the rows of an undisturbed study."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaosgate.cli.study import execute
from chaosgate.run.files import RunDirectory
from chaosgate.study import Run
from chaosgate.study.execute.local import warm
from chaosgate.study.execute.run import run as run_one
from chaosgate.study.execute.state import read_json, state_of
from tests.study.real_studies import numbers, runs_of, start, study, tiny

pytestmark = pytest.mark.slow
SMALL = {"data.init_args.corruptions": ["gaussian_noise"], "trainer.max_epochs": 2}
MOMENTS = (1, 3, 6, 9, 12, 15, 18)  # writes of files of a run
NEEDED = "fitted.json tested/*.json outputs/*.npz".split()  # by reports
NOT_NEEDED = ["results.jsonl", "curves.jsonl", "config.yaml"]


def in_process(run: Run, fault: str = "", at: int = 0) -> int:
    """Exit status of a process of the run to which something happens at its n-th write."""
    process = warm("chaosgate.cli.training").Process(target=broken, args=(run, fault, at))
    process.start()
    process.join()
    return int(process.exitcode)


def broken(run: Run, fault: str, at: int) -> None:
    replace, count = os.replace, 0

    def replaced(*arguments: Any, **more: Any) -> None:
        nonlocal count
        count += 1
        if count == at and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if count == at and fault == "delete":
            shutil.rmtree(run.directory)
        if count >= at and fault == "disk full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if count == at and fault == "no more bytes":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        replace(*arguments, **more)

    os.replace = replaced
    run_one(run, execute)


@pytest.fixture(scope="module")
def peace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one run that nothing happens to."""
    folder = tmp_path_factory.mktemp("peace")
    cache = {"data.init_args.cache_dir": str(folder / "cache")}
    path = tiny(folder, "tiny", {"gch": "noise/gch"}, **SMALL, **cache)
    (run,) = runs_of(path)
    assert in_process(run) == 0 and len(numbers(run)) == 3
    return path


@pytest.fixture
def run(peace: Path, tmp_path: Path) -> Iterator[Run]:
    """The same run in another folder, after the test compared with the undisturbed one."""
    shutil.copy(peace, tmp_path)
    (run,) = runs_of(tmp_path / peace.name)
    yield run
    for _ in range(2):  # a study tries twice
        if state_of(run).condition != "done":
            in_process(run)
    assert state_of(run).condition == "done"
    assert numbers(run) == numbers(*runs_of(peace))


@pytest.mark.parametrize(
    ("fault", "at", "status"),
    [
        *[("kill", at, -signal.SIGKILL) for at in MOMENTS],
        *[("disk full", at, 1) for at in MOMENTS],
        ("no more bytes", 4, 1),
        ("no more bytes", 11, 1),
        ("delete", 8, 1),
    ],
)
def test_process_that_breaks_at_a_write(fault: str, at: int, status: int, run: Run) -> None:
    assert in_process(run, fault, at) == status


@pytest.mark.parametrize("pattern", NEEDED + NOT_NEEDED)
def test_damaged_file(pattern: str, run: Run) -> None:
    assert in_process(run) == 0
    (path,) = run.directory.glob(pattern)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    state = state_of(run)
    assert state.condition == ("interrupted" if pattern in NEEDED else "done")
    assert bool(state.trouble) == (pattern in NEEDED)


def test_changed_digit_of_a_row_and_damaged_network(run: Run) -> None:
    assert in_process(run) == 0
    (rows,) = run.directory.glob("tested/*.json")
    rows.write_text(rows.read_text().replace('"nll": 2', '"nll": 1'))
    last = RunDirectory(run.directory).last
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    assert state_of(run).condition == "interrupted"
    assert in_process(run) != 0  # the network cannot be made again: it is named
    shutil.rmtree(run.directory)


def test_read_only_directory(run: Run) -> None:
    run.directory.mkdir(parents=True)
    lock = ["chattr", "+i"] if os.geteuid() == 0 else ["chmod", "a-w"]
    free = ["chattr", "-i"] if os.geteuid() == 0 else ["chmod", "u+w"]
    if subprocess.run([*lock, str(run.directory)], capture_output=True).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        process = study("run", run.root.parent / "tiny.yaml")
        assert process.returncode == 1 and "cannot be written" in process.stdout
    finally:
        subprocess.run([*free, str(run.directory)], check=True)


@pytest.mark.parametrize("who", ["runner", "runner and run", "nobody"])
def test_runner_that_is_killed_or_one_of_two(who: str, run: Run) -> None:
    path, pid = run.root.parent / "tiny.yaml", None
    runners = [start("run", path) for _ in range(2 if who == "nobody" else 1)]
    while pid is None and runners[0].poll() is None:
        pid = read_json(RunDirectory(run.directory).progress).get("pid")
        time.sleep(0.01)
    if "runner" in who:
        runners[0].kill()
    if "and run" in who:
        os.kill(int(pid or 0), signal.SIGKILL)
    for runner in runners:
        runner.communicate(timeout=300)
    process = study("run", path)  # waits for a run that is still at work
    assert process.returncode == 0 and "Traceback" not in process.stdout + process.stderr


def test_study_file_that_is_edited_while_it_runs(run: Run) -> None:
    path = run.root.parent / "tiny.yaml"
    text = path.read_text()
    runner = start("run", path)
    while state_of(run).condition == "missing" and runner.poll() is None:
        time.sleep(0.01)
    path.write_text(text.replace("trainer.max_epochs: 2", "trainer.max_epochs: 1"))
    assert runner.communicate(timeout=600) and runner.returncode == 0
    (other,) = runs_of(path)
    assert other.directory != run.directory and state_of(other).condition == "missing"
    path.write_text(text)


def test_failing_method_beside_a_good_one(run: Run) -> None:
    path = run.root.parent / "tiny.yaml"
    bad = "bad: [noise/gch, {model.optimizer.init_args.lr: 1.0e+30}]"
    path.write_text(path.read_text().replace("  gch: noise/gch", f"  gch: noise/gch\n  {bad}"))
    process = study("run", path)
    assert process.returncode == 1 and "trainer.gradient_clip_val" in process.stdout
    assert [state_of(one).condition for one in runs_of(path)] == ["done", "failed"]
