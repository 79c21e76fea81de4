from chaosgate.bench.data import run


def test_the_benchmark_of_the_data_compares_like_with_like():
    rows = {row["what"]: row for row in run(repeats=1, images_per_cell=2, workers=0)}
    assert all(row["ratio"] == row["reference_ms"] / row["ours_ms"] > 0 for row in rows.values())
    assert rows["eval transform"]["within_1"] > 0.99 and rows["eval transform"]["pil_equal"]
    cells = rows["test of 35 cells x 2 images, 0 workers"]
    assert cells["bytes_per_cell"] < 100  # its folder, and nothing that grows with the images
