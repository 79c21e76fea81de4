"""Parts of timm's training script: mixup, LAMB, schedule, averaged weights, task, checkpoints."""

import numpy as np
import pytest
import timm.data
import timm.loss
import timm.models
import timm.optim
import timm.scheduler
import timm.utils

import chaosgate as cg
from tests.programs.by_hand import batches, compare, equal, gate, network, weights

pytestmark = pytest.mark.slow
task = pytest.importorskip("timm.task")


class Run:
    """One training run, as timm's script sets it up."""

    def __init__(self, model):
        self.model = model
        self.optimizer = timm.optim.create_optimizer_v2(
            model, opt="lamb", lr=0.02, weight_decay=0.02
        )
        self.schedule, _ = timm.scheduler.create_scheduler_v2(
            self.optimizer, num_epochs=4, warmup_epochs=1
        )
        self.average = timm.utils.ModelEmaV3(model, decay=0.9)
        self.mixup = timm.data.Mixup(
            mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10
        )
        self.task = task.ClassificationTask(
            model, timm.loss.SoftTargetCrossEntropy(), verbose=False
        )

    def epochs(self, first, last):
        for epoch in range(first, last):
            np.random.seed(epoch)  # mixup draws from it
            self.model.train()
            for images, labels in batches(2):
                loss = self.task(*self.mixup(images, labels))["loss"]
                self.optimizer.zero_grad()
                loss.backward()
                timm.utils.dispatch_clip_grad(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.average.update(self.model)
            self.schedule.step(epoch + 1)
        return weights(self.model) | {
            f"averaged {k}": v for k, v in weights(self.average.module).items()
        }


def test_a_training_equals_one_with_a_gate_by_hand():
    compare(lambda model: Run(model).epochs(0, 3))


def test_a_resumed_training_equals_one_that_was_not_interrupted(tmp_path):
    integrations = pytest.importorskip("chaosgate.inject.integrations")
    model = network()
    with cg.attach(model, gate(), "L4") as handle:
        run = Run(model)
        run.epochs(0, 2)
        state = integrations.timm_state(handle)
        folder = str(tmp_path)
        saver = timm.utils.CheckpointSaver(
            model, run.optimizer, amp_scaler=state, checkpoint_dir=folder, recovery_dir=folder
        )
        saver.save_checkpoint(epoch=1)
        run.epochs(2, 4)
    again = network()
    with cg.attach(again, gate(), "L4") as handle:
        run = Run(again)
        state = integrations.timm_state(handle)
        file = str(tmp_path / "last.pth.tar")
        epoch = timm.models.resume_checkpoint(again, file, run.optimizer, state)
        run.schedule.step(epoch)
        run.epochs(epoch, 4)
    assert equal(weights(model), weights(again))
