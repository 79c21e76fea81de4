from chaosgate.bench.corruptions import natural_image, run
from chaosgate.corruptions import PAPER


def test_the_benchmark_reports_each_corruption_and_their_sum():
    rows = run(repeats=1, images=[natural_image(64, seed=0)])
    assert [row["corruption"] for row in rows] == [*PAPER, "sum"]
    for key in ("ours_ms", "reference_ms"):
        assert rows[-1][key] == sum(row[key] for row in rows[:-1])
    assert all(row["ratio"] == row["reference_ms"] / row["ours_ms"] for row in rows)


def test_glass_blur_without_the_loop_is_several_times_faster():
    (row, _) = run(repeats=3, images=[natural_image(96, seed=0)], names=("glass_blur",))
    assert row["ratio"] > 5  # a hundred and more on an idle machine
