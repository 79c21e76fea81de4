"""Properties of your gate and operator, and of the data."""

import torch
from my_project.data import Shapes
from my_project.gates import Blink
from my_project.operators import Islands

import chaosgate as cg
from chaosgate.field.white import Noise, fold

KEY = Noise(torch.tensor(fold("test")))


def test_the_operator_is_positive_definite():
    matrix = Islands().matrix((6, 6))
    assert torch.allclose(matrix, matrix.T)
    assert torch.linalg.eigvalsh(matrix)[0] > 0


def test_the_gate_has_mean_one():
    gated = Blink(p=0.25).perturb(torch.ones(20_000, 1, 2, 2), KEY)
    assert abs(float(gated.mean()) - 1) < 0.03


def test_the_gate_acts_in_training_and_is_silent_in_evaluation():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(3)
    )
    images = torch.rand(16, 1, 28, 28)
    plain = model.eval()(images)
    handle = cg.attach(model, cg.GaussianChaos(log_std=1.0, operator=Islands()), ["1"])
    assert torch.equal(model.eval()(images), plain)
    assert not torch.equal(model.train()(images), plain)
    assert handle.fired == 1


def test_the_images_are_balanced():
    data = Shapes(batch_size=16)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch.image.shape == (16, 1, 28, 28)
    assert sorted(set(data.read()["test"].targets)) == [0, 1, 2]
