import pytest

from chaosgate.bench.fit import CASES, run

_SMALL = ("--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1", "--data.batch_size=4")


@pytest.mark.parametrize("case", CASES)
def test_fit_and_the_plain_loop_train_the_same_network_so_that_only_their_times_differ(case: str):
    (row,) = run(repeats=1, cases=[case], more=_SMALL)
    assert row["same_weights"] is True  # the same weights, batches, optimiser and learning rates, to the last bit
    assert 0 < row["smallest"] <= row["throughput"] <= row["largest"]
    assert row["fit_s"] > 0 < row["plain_s"]
