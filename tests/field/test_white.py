import math

import numpy as np
import pytest
import torch
from scipy import stats

from chaosgate.field import white
from chaosgate.field.white import Noise, advance, fold, mix

GOLDEN = 0x9E3779B97F4A7C15


def key_of(*parts):
    return torch.tensor(fold(*parts))


def splitmix(word):
    for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        word = (word ^ (word >> shift)) * multiplier % 2**64
    return word


def test_mix_is_splitmix64():
    # The generator's published first output for state 0 is mix(golden).
    assert splitmix(GOLDEN) == 0xE220A8397B1DCDAF == mix(GOLDEN)
    words = np.array([(7 + GOLDEN * i) % 2**64 for i in range(1, 200)], dtype=np.uint64)
    signed = mix(torch.from_numpy(words.view(np.int64)))
    assert signed.numpy().view(np.uint64).tolist() == [splitmix(int(word)) for word in words]


def test_same_key_same_numbers_other_call_other_numbers_and_the_global_stream_is_untouched():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    noise = Noise(key_of(0, "a"))
    first, other = noise.normal((1000,)), noise.normal((1000,))
    assert torch.equal(first, Noise(key_of(0, "a")).normal((1000,)))
    assert not torch.equal(first, Noise(key_of(1, "a")).normal((1000,)))
    assert abs(torch.corrcoef(torch.stack([first, other]))[0, 1]) < 5 / math.sqrt(1000)
    assert torch.equal(before, torch.get_rng_state())


def test_fold_separates_its_parts():
    parts = (1, 23), (12, 3), ("1", 23), (123,), ("a", "b"), ("ab",)
    assert len({fold(*one) for one in parts}) == 6


def test_advance_accepts_counters_on_the_device(monkeypatch):
    key = key_of("k")
    assert advance(key, 5) == advance(key, torch.tensor(5)) == advance(int(key), 5)
    assert len({advance(key, n) for n in range(1000)}) == 1000
    on_host = [advance(advance(key, n), 2**62 + n) for n in range(100)]
    # when compiling, keys stay tensors, as on a GPU
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert on_host == [int(advance(advance(key, torch.tensor(n)), 2**62 + n)) for n in range(100)]


@pytest.mark.statistical
def test_neighboring_keys_give_uncorrelated_normals():
    rows = torch.stack([Noise(advance(key_of("n"), i)).normal((10_000,)) for i in range(20)])
    assert (torch.corrcoef(rows) - torch.eye(20)).abs().max() < 5.5e-2  # five standard errors
    assert stats.kstest(rows.flatten().numpy(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 49, 3137])
def test_numbers_are_those_of_the_definition(count, dtype):
    """Word i is mix(key + (i + 1) golden) in Python's unbounded integers; the third call."""
    half = (count + 1) // 2
    key = splitmix((fold("definition") + 3 * GOLDEN) % 2**64)
    words = [splitmix((key + (i + 1) * GOLDEN) % 2**64) for i in range(half)]
    bits = np.array([word >> 32 for word in words] + [word % 2**32 for word in words])
    uniforms = (bits.astype(np.float32 if dtype == torch.float32 else np.float64) + 0.5) * 2.0**-32
    first, second = uniforms[:half].astype(np.float64), uniforms[half:].astype(np.float64)
    angle, radius = 2 * np.pi * second, np.sqrt(-2 * np.log(first))
    normals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    noise, again = Noise(key_of("definition")), Noise(key_of("definition"))
    for one in (noise, again):
        one.uniform((3,)), one.uniform((5,))
    found = noise.uniform((count,), dtype).numpy()
    assert np.array_equal(found, uniforms[:count].astype(found.dtype))
    error = np.abs(again.normal((count,), dtype).double().numpy() - normals).max()
    assert error < (1e-5 if dtype == torch.float32 else 1e-13)  # float32 rounds the angle


def test_chunks_and_the_compiled_path_do_not_change_the_numbers(monkeypatch):
    whole = Noise(key_of("piece")).normal((100_001,))
    monkeypatch.setattr(white, "CHUNK", 64)
    assert torch.equal(whole[:1000], Noise(key_of("piece")).normal((100_001,))[:1000])
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(whole, Noise(key_of("piece")).normal((100_001,)))
    assert Noise(key_of("piece")).normal((0, 3)).shape == (0, 3)
