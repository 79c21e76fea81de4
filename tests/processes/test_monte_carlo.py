"""Monte Carlo uncertainty on several processes: padding does not count, and short shards weigh
less."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch

from chaosgate.data.samples import Sample
from chaosgate.gate import Dropout
from chaosgate.inject.callback import NoiseInjection


def test_uncertainty_is_the_mean_over_all_images():
    callback = NoiseInjection(Dropout(0.1), monte_carlo=2)
    uncertainty = {"entropy": torch.tensor([1.0, 3.0, 100.0])}
    network = torch.nn.Identity()
    fake = SimpleNamespace(
        model=network, uncertainty=uncertainty, monte_carlo=lambda *_: nullcontext()
    )
    callback.attachment = fake
    logged = {}
    module = SimpleNamespace(
        device="cpu",
        log=lambda name, value, **_: logged.update({name: float(value)}),
        get_submodule=lambda _: network,
    )
    other = torch.tensor([8.0, 1.0])  # the sum and the number of images of another process
    trainer = SimpleNamespace(
        testing=True,
        state=SimpleNamespace(fn="test"),
        strategy=SimpleNamespace(reduce=lambda mine, reduce_op: mine + other),
    )
    batch = Sample(
        torch.zeros(3, 1), torch.zeros(3), torch.tensor([0, 1, -1])
    )  # the third one is padding
    callback.on_test_batch_start(trainer, module, batch, 0)
    callback.on_test_batch_end(trainer, module, None, batch, 0)
    callback.on_test_epoch_end(trainer, module)
    assert logged == {"test/monte_carlo/entropy": (1 + 3 + 8) / 3}
