import numpy as np
from numpy.typing import NDArray

from chaosgate.bench.corruptions import run
from chaosgate.corruptions import PAPER


def natural_image(size: int, seed: int) -> NDArray[np.uint8]:
    r"""A picture with the :math:`1 / f` amplitude spectrum of photographs, its channels strongly correlated."""
    random = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :])
    frequency[0, 0] = np.inf
    fields = np.fft.irfft2(np.fft.rfft2(random.standard_normal((4, size, size))) / frequency, s=(size, size))
    fields /= fields.std(axis=(1, 2), keepdims=True)
    picture = 120 + 50 * (fields[3][..., None] + 0.3 * np.moveaxis(fields[:3], 0, -1))
    return np.asarray(np.clip(picture, 0, 255)).astype(np.uint8)


def test_the_benchmark_reports_each_corruption_and_their_sum():
    rows = run(repeats=1, images=[natural_image(64, seed=0)])
    assert [row["corruption"] for row in rows] == [*PAPER, "sum"]
    for key in ("ours_ms", "reference_ms"):
        assert rows[-1][key] == sum(row[key] for row in rows[:-1])
    assert all(row["ratio"] == row["reference_ms"] / row["ours_ms"] for row in rows)


def test_glass_blur_without_the_loop_is_several_times_faster():
    (row, _) = run(repeats=3, images=[natural_image(96, seed=0)], names=("glass_blur",))
    assert row["ratio"] > 5  # a hundred and more on an idle machine
