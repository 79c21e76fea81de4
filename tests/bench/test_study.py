import pytest

from chaosgate.bench.study import run


@pytest.mark.slow
def test_warm_and_fresh_processes_give_the_same_rows():
    (row,) = run(repeats=2)
    assert row["same_rows"] is True and row["warm_s"] > 0 < row["fresh_s"]
