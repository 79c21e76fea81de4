import math

import numpy as np
import pytest
import torch
from scipy import stats

from chaosgate.field import white
from chaosgate.field.white import Noise, advance, fold, mix


def key_of(*parts):
    return torch.tensor(fold(*parts))


def test_mix_is_splitmix64():
    # The generator's published first outputs for state 0 and 1234567 are mix(state + golden * i).
    def reference(state):
        word = (1 << 64) - 1
        z = state & word
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    assert reference(golden) == 0xE220A8397B1DCDAF
    states = [(7 + golden * i) % 2**64 for i in range(1, 200)]
    signed = torch.from_numpy(np.array(states, dtype=np.uint64).view(np.int64))
    ours = mix(signed).numpy().view(np.uint64)
    assert [int(w) for w in ours] == [reference(s) for s in states]


def test_same_key_same_numbers_and_the_global_stream_is_untouched():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = Noise(key_of(0, "a")).normal((5, 7))
    second = Noise(key_of(0, "a")).normal((5, 7))
    assert torch.equal(first, second)
    assert not torch.equal(first, Noise(key_of(1, "a")).normal((5, 7)))
    assert torch.equal(before, torch.get_rng_state())


def test_calls_draw_from_different_streams():
    noise = Noise(key_of("calls"))
    first, second = noise.normal((1000,)), noise.normal((1000,))
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 5 / math.sqrt(1000)


def test_chunks_do_not_change_the_numbers(monkeypatch):
    whole = Noise(key_of("chunk")).normal((1001,))
    monkeypatch.setattr(white, "CHUNK", 64)
    assert torch.equal(whole, Noise(key_of("chunk")).normal((1001,)))


def test_fold_separates_its_parts():
    assert (
        len({fold(1, 23), fold(12, 3), fold("1", 23), fold(123), fold("a", "b"), fold("ab")}) == 6
    )


def test_advance_accepts_counters_on_the_device(monkeypatch):
    key = key_of("k")
    assert advance(key, 5) == advance(key, torch.tensor(5)) == advance(int(key), 5)
    assert len({advance(key, n) for n in range(1000)}) == 1000
    on_host = [advance(advance(key, n), 2**62 + n) for n in range(100)]
    monkeypatch.setattr(
        torch.compiler, "is_compiling", lambda: True
    )  # then keys stay tensors, as on a GPU
    assert on_host == [int(advance(advance(key, torch.tensor(n)), 2**62 + n)) for n in range(100)]


@pytest.mark.statistical
def test_normals_are_normal_and_uniforms_uniform():
    # Kolmogorov-Smirnov on a million numbers at a fixed key; p > 1e-3 for a correct generator
    # except one key in 500.
    noise = Noise(key_of("law"))
    normals = noise.normal((1_000_000,), dtype=torch.float64).numpy()
    uniforms = noise.uniform((1_000_000,), dtype=torch.float64).numpy()
    assert stats.kstest(normals, "norm").pvalue > 1e-3
    assert stats.kstest(uniforms, "uniform").pvalue > 1e-3
    assert uniforms.min() > 0 and uniforms.max() < 1
    # The two halves of Box-Muller and neighbouring keys are uncorrelated: five standard errors of
    # 1e-3.
    assert abs(np.corrcoef(normals[:500_000], normals[500_000:])[0, 1]) < 5e-3 * math.sqrt(2)
    rows = torch.stack([Noise(advance(key_of("n"), i)).normal((10_000,)) for i in range(20)])
    off_diagonal = torch.corrcoef(rows) - torch.eye(20)
    assert off_diagonal.abs().max() < 5.5e-2  # 190 pairs, standard error 1e-2 each


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 49, 3137])
def test_numbers_are_those_of_the_definition(count, dtype):
    """Word i is mix(key + (i + 1) golden) in Python's unbounded integers; the numbers of call 2 of
    a Noise.
    """

    def splitmix(word):
        for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            word = (word ^ (word >> shift)) * multiplier % 2**64
        return word

    golden, half = 0x9E3779B97F4A7C15, (count + 1) // 2
    key = splitmix((fold("definition") + 3 * golden) % 2**64)  # two calls came before
    words = [splitmix((key + (i + 1) * golden) % 2**64) for i in range(half)]
    bits = np.array([word >> 32 for word in words] + [word % 2**32 for word in words])
    expected = (bits.astype(np.float32 if dtype == torch.float32 else np.float64) + 0.5) * 2.0**-32
    noise = Noise(key_of("definition"))
    noise.uniform((3,)), noise.uniform((5,))
    uniforms = noise.uniform((count,), dtype).numpy()
    assert np.array_equal(uniforms, expected[:count].astype(uniforms.dtype))

    again = Noise(key_of("definition"))
    again.uniform((3,)), again.uniform((5,))
    first, second = expected[:half].astype(np.float64), expected[half:].astype(np.float64)
    radius = np.sqrt(-2 * np.log(first))
    normals = np.concatenate(
        [radius * np.cos(2 * np.pi * second), radius * np.sin(2 * np.pi * second)]
    )[:count]
    error = np.abs(again.normal((count,), dtype).double().numpy() - normals).max()
    assert error < (
        1e-5 if dtype == torch.float32 else 1e-13
    )  # float32: the angle is rounded by up to 2 ulp of 2 pi


def test_the_compiled_path_draws_in_one_piece_the_same_numbers(monkeypatch):
    in_parts = Noise(key_of("piece")).normal((100_001,))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(in_parts, Noise(key_of("piece")).normal((100_001,)))
    assert Noise(key_of("piece")).normal((0, 3)).shape == (0, 3)
