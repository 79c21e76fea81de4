import math

import numpy as np
import pytest
import torch
from scipy import stats

from chaosgate.field import host_noise, white
from chaosgate.field.white import Noise, Stream, advance, fold, mix


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
    monkeypatch.setattr(host_noise, "CHUNK", 64)
    assert torch.equal(whole, Noise(key_of("chunk")).normal((1001,)))


def test_fold_separates_its_parts():
    assert len({fold(1, 23), fold(12, 3), fold("1", 23), fold(123), fold("a", "b"), fold("ab")}) == 6


def test_advance_accepts_counters_on_the_device():
    key = key_of("k")
    assert torch.equal(advance(key, 5), advance(key, torch.tensor(5)))
    assert len({int(advance(key, n)) for n in range(1000)}) == 1000


@pytest.mark.statistical
def test_normals_are_normal_and_uniforms_uniform():
    # Kolmogorov-Smirnov on a million numbers at a fixed key; p > 1e-3 for a correct generator except one key in 500.
    noise = Noise(key_of("law"))
    normals = noise.normal((1_000_000,), dtype=torch.float64).numpy()
    uniforms = noise.uniform((1_000_000,), dtype=torch.float64).numpy()
    assert stats.kstest(normals, "norm").pvalue > 1e-3
    assert stats.kstest(uniforms, "uniform").pvalue > 1e-3
    assert uniforms.min() > 0 and uniforms.max() < 1
    # The two halves of Box-Muller and neighbouring keys are uncorrelated: five standard errors of 1e-3.
    assert abs(np.corrcoef(normals[:500_000], normals[500_000:])[0, 1]) < 5e-3 * math.sqrt(2)
    rows = torch.stack([Noise(advance(key_of("n"), i)).normal((10_000,)) for i in range(20)])
    off_diagonal = torch.corrcoef(rows) - torch.eye(20)
    assert off_diagonal.abs().max() < 5.5e-2  # 190 pairs, standard error 1e-2 each


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 49, 3137])
@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_the_host_computes_the_same_bits_as_the_tensor_operations(monkeypatch, law, count, dtype):
    key = advance(key_of("host"), torch.tensor(3))
    on_host = getattr(Noise(key), law)((count,), dtype)
    monkeypatch.setattr(white, "on_host", lambda number: False)
    assert int(key) == int(advance(key_of("host"), torch.tensor(3)))
    assert torch.equal(on_host, getattr(Noise(key), law)((count,), dtype))


@pytest.mark.parametrize("shape", [(4, 1, 7, 7), (3, 5), (70_000,)])  # drawn ahead, ahead with an odd count, alone
def test_a_stream_draws_ahead_what_each_event_would_draw_by_itself(shape):
    key, events = key_of("stream"), [0, 1, 2, 15, 16, 17, 40, 3, 3]  # forwards, jumps, back, and again
    stream = Stream(key, tail=(0,))
    for event in events:
        noise, alone = stream.at(torch.tensor(event)), Noise(advance(advance(key, event), 0))
        assert torch.equal(noise.key, alone.key)
        for draw in ("normal", "uniform", "normal"):
            ahead, expected = getattr(noise, draw)(shape), getattr(alone, draw)(shape)
            assert torch.equal(ahead, expected)
            ahead.zero_()  # whoever gets the numbers may write to them


def test_a_stream_on_a_device_only_advances_the_key(monkeypatch):
    key = key_of("device")
    expected = Stream(key, tail=(2,)).at(torch.tensor(5)).normal((10,))
    monkeypatch.setattr(white, "on_host", lambda number: False)
    assert torch.equal(Stream(key, tail=(2,)).at(torch.tensor(5)).normal((10,)), expected)


def test_what_is_derived_does_not_depend_on_which_event_comes_first():
    key, matrix = key_of("derived"), torch.randn(49, 49, generator=torch.Generator().manual_seed(0))

    def then(white):
        return (white.flatten(1) @ matrix).view(white.shape)

    in_order = Stream(key)
    expected = [in_order.at(torch.tensor(event)).derived((64, 7, 7), torch.float32, then) for event in range(40)]
    for event in (37, 5, 20, 39, 0):  # a run that resumes there, or a recomputed activation
        again = Stream(key).at(torch.tensor(event)).derived((64, 7, 7), torch.float32, then)
        assert torch.equal(again, expected[event])
        alone = then(Noise(advance(key, event)).normal((64, 7, 7)))
        torch.testing.assert_close(again, alone, rtol=1e-5, atol=1e-5)  # sums of 49 float32 terms in another order
        again.zero_()  # whoever gets it may write to it
    with torch.inference_mode():
        stream = Stream(key)
        stream.at(torch.tensor(3)).derived((64, 7, 7), torch.float32, then)
    kept = stream.at(torch.tensor(4)).derived((64, 7, 7), torch.float32, then)
    assert not kept.is_inference() and torch.equal(kept, expected[4])
