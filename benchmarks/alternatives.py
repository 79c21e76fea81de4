"""What the alternatives to noise cost: a training step, or the test of a batch, with each of them
against without.

The network is timm's ResNet-18 on 64 px, small enough for a CPU; what losses, mixed images and
averages cost beside a larger network is a smaller share.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from statistics import median

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel

from benchmarks.timing import Row, keep_memory, rounds
from chaosgate.gate import Dropout
from chaosgate.inject import attach
from chaosgate.metrics import temperature_scaling
from chaosgate.train.alternatives import CrossEntropy, FocalLoss, Mixing

CLASSES, DRAWS, MEMBERS = 10, 20, 5
Steps = dict[str, Callable[[], object]]


def run(repeats: int = 15, batch: int = 32, side: int = 64) -> list[Row]:
    """Medians over ``repeats`` rounds; ``over_plain``: the median ratio to the same without it in
    the same round.
    """
    keep_memory()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, side, side, generator=generator)
    target = torch.randint(CLASSES, (batch,), generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        steps = rounds(_training_steps(images, target), repeats)
        tests = rounds(_tests(images), max(1, repeats // 5))
    return [
        {"of": of, "images": f"{batch}x3x{side}x{side}", "what": name, "ms": median(ms)}
        | {"over_plain": median(one / plain for one, plain in zip(ms, times["plain"], strict=True))}
        for of, times in (("training step", steps), ("test of a batch", tests))
        for name, ms in times.items()
    ]


def _training_steps(images: Tensor, target: Tensor) -> Steps:
    """Each with a network and an optimizer of its own, so that all do the same work."""
    turns = count()

    def step(
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        mixing: Mixing | None = None,
        drop_path_rate: float = 0.0,
        average: bool = False,
        dropout: bool = False,
    ) -> Callable[[], object]:
        model = _network(drop_path_rate)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        averaged = AveragedModel(model, avg_fn=_decayed, use_buffers=True)
        if dropout:
            attach(model, Dropout(0.1), "L4", check=False)

        def call() -> None:
            optimizer.zero_grad()
            shown, wanted = images, target
            if mixing is not None:
                shown, wanted = mixing(images, target, CLASSES, (0, next(turns)))
            torch.autograd.backward(loss(model(shown), wanted))
            optimizer.step()
            if average:
                averaged.update_parameters(model)

        return call

    return {
        "plain": step(),
        "label_smoothing": step(CrossEntropy(label_smoothing=0.1)),
        "focal": step(FocalLoss(3.0)),
        "mixup": step(mixing=Mixing(0.2, 0.0)),
        "cutmix": step(mixing=Mixing(0.0, 1.0)),
        "stochastic_depth": step(drop_path_rate=0.1),
        "ema": step(average=True),
        "mc_dropout": step(dropout=True),
    }


def _tests(images: Tensor) -> Steps:
    models = [_network().eval() for _ in range(MEMBERS)]
    with torch.no_grad():
        target = models[0](images).argmax(1)
    target[::4] = (target[::4] + 1) % CLASSES  # mostly right, so that there is a temperature
    noised = _network()
    attach(noised, Dropout(0.1), "L4", check=False)

    @torch.no_grad()
    def predict(*used: nn.Module) -> Tensor:
        return torch.stack([one(images).softmax(1) for one in used]).mean(0)

    @torch.no_grad()
    def scale() -> None:
        temperature_scaling(models[0](images), target)

    return {
        "plain": partial(predict, models[0]),
        "mc_dropout": partial(predict, *[noised] * DRAWS),
        "ensemble": partial(predict, *models),
        "temperature": scale,
    }


def _decayed(average: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
    return average + 0.001 * (current - average)


def _network(drop_path_rate: float = 0.0) -> nn.Module:
    rate = {"drop_path_rate": drop_path_rate}
    made: nn.Module = timm.create_model("resnet18", num_classes=CLASSES, **rate)  # type: ignore[arg-type]
    return made.train()
