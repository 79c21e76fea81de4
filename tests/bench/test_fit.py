from chaosgate.bench.fit import CASES, run

_SMALL = ("--model.backbone_args.channels=[2,2,2,2]", "--trainer.limit_train_batches=2")


def test_fit_and_the_plain_loop_train_the_same_network_so_that_only_their_times_differ():
    (row,) = run(repeats=2, cases=[next(iter(CASES))], more=_SMALL)
    assert row["same_weights"] is True  # the same weights, batches, optimiser and learning rates, to the last bit
    assert 0 < row["smallest"] <= row["throughput"] <= row["largest"]
    assert row["fit_s"] > 0 < row["plain_s"]
