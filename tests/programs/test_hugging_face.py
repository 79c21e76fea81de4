"""transformers' ``Trainer`` and accelerate, with resuming."""

import pytest
import torch
from torch.utils.data import DataLoader

import chaosgate as cg
from tests.programs.by_hand import batches, compare, equal, gate, network, weights

pytestmark = pytest.mark.slow


def hugging_face_network():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        num_labels=10,
    )
    return transformers.ResNetForImageClassification(config)


def trainer(model, folder, callbacks=()):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    quiet = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no"}
    steps = {"max_steps": 4, "save_steps": 2, "gradient_accumulation_steps": 2}
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True,
        dataloader_pin_memory=False, **steps, **quiet,
    )  # fmt: skip
    samples = [
        {"pixel_values": x, "labels": y}
        for images, labels in batches(8)
        for x, y in zip(images, labels, strict=True)
    ]
    return transformers.Trainer(model, arguments, train_dataset=samples, callbacks=list(callbacks))


def test_trainer_equals_one_with_a_gate_by_hand(tmp_path):
    def train(model):
        trainer(model, tmp_path).train()
        return weights(model)

    compare(train, hugging_face_network, "resnet.encoder.stages.3")


def test_trainer_resumes_from_a_checkpoint(tmp_path):
    integrations = pytest.importorskip("chaosgate.inject.integrations")
    model, again = hugging_face_network(), hugging_face_network()
    with cg.attach(model, gate(), "L4") as handle:
        trainer(model, tmp_path, [integrations.trainer_callback(handle)]).train()
    with cg.attach(again, gate(), "L4") as handle:
        program = trainer(again, tmp_path / "again", [integrations.trainer_callback(handle)])
        program.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert equal(weights(model), weights(again))


def accelerated(model, folder=None, resume=False):
    """Four steps with accumulated gradients; saved after two, or continued from there."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = [(x, y) for images, labels in batches(4) for x, y in zip(images, labels, strict=True)]
    model, optimizer, loader = accelerator.prepare(
        model.train(), optimizer, DataLoader(data, batch_size=4)
    )
    for handle in cg.inject.Attachment.on(model):
        accelerator.register_for_checkpointing(handle)
    if resume:
        accelerator.load_state(folder)
    for number, (images, labels) in enumerate(loader):
        if resume and number < 2:
            continue
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
        if number == 1 and folder and not resume:
            accelerator.save_state(folder)
    return weights(accelerator.unwrap_model(model))


def test_accelerate_equals_a_loop_with_a_gate_by_hand():
    compare(accelerated)


def test_accelerate_resumes(tmp_path):
    found = []
    for resume in (False, True):
        model = network()
        with cg.attach(model, gate(), "L4"):
            found.append(accelerated(model, str(tmp_path / "state"), resume))
    assert equal(*found)
