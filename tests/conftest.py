import os
import signal
from pathlib import Path

import lightning.pytorch  # noqa: F401 - its log handlers keep the stream they find; not that of a single test
import pytest
import torch

torch.set_num_threads(1)  # xdist starts as many processes as there are cores

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # under nohup, or in a background job
    # what tests start inherits it; Ctrl-C is tested
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["CHAOSGATE_ALLOW"] = "tests"  # configurations of the tests name classes of the tests

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def configs():
    """Configuration files of the repository as ``-c`` arguments, by short name."""

    def arguments(*names):
        paths = [str(REPOSITORY / "configs" / f"{name}.yaml") for name in names]
        return [word for path in paths for word in ("-c", path)]

    return arguments


@pytest.fixture
def command(monkeypatch, tmp_path, capfd):
    """Run a chaosgate command in this process, in an empty directory; gives (exit status, stdout,
    stderr)."""
    from chaosgate.__main__ import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capfd.readouterr()
        try:
            status = main([str(a) for a in arguments])
        except SystemExit as stop:  # argparse
            status = stop.code
        out, err = capfd.readouterr()
        return status, out, err

    return run


@pytest.fixture(autouse=True)
def _process_as_before():
    """Lightning leaves the address of its processes in the environment; the next launch would wait
    for them. So does a process that is forked from several threads, which commands may start."""
    names = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE")
    before = {name: os.environ[name] for name in names if name in os.environ}
    yield
    torch.set_num_threads(1)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    for name in names:
        os.environ.pop(name, None)
    os.environ.update(before)
