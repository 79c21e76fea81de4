"""Strengths that follow the training, for a study. Not part of the public API; may disappear."""

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from torch.nn.functional import cross_entropy

from chaosgate.inject.callback import NoiseInjection
from chaosgate.run.files import write_json


class Replay(Callback):
    """One strength for each epoch, e.g. those of another run.

    Args:
        file: A JSON list of factors on the strength of the gate (``strengths.json`` of a run).
    """

    def __init__(self, file: str) -> None:
        self.strengths: list[float] = json.loads(Path(file).read_text(encoding="utf-8"))

    def on_train_batch_start(self, trainer: Any, *unused: Any) -> None:
        for noise in NoiseInjection.of(trainer):
            if noise.attachment is not None:
                noise.attachment.set_strength(self.strengths[trainer.current_epoch])


class OverfittingControl(Replay):
    r"""Set the strength after every epoch from how far the network overfits.

    .. math:: r = 1 - \frac{\text{training NLL}}{\text{validation NLL}}, \qquad
        u = 2\,\bigl(\mathrm{EMA}[\min(1, r/t)] - 0.4\bigr) \text{ clipped to } [0, 1]

    Both NLLs are of all images in evaluation mode, without augmentation; t is the share of the
    training that is done. The average starts at zero when t reaches ``start``; before, there is no
    noise. The gate has the largest strength (``log_std: 3``), u is the factor on it. The strength
    of every epoch is in ``strengths.json`` of the run.

    Args:
        start: Share of the training without noise.
        decay: Of the average, per epoch.
    """

    def __init__(self, start: float = 0.25, decay: float = 0.8) -> None:
        self.start, self.decay = start, decay
        self.average, self.strengths = 0.0, [0.0]

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average, "strengths": self.strengths}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Decide the strength of the next epoch, the same on all processes."""
        from chaosgate.run.rows import outputs_of  # not needed to import a configuration

        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        done, data = (trainer.current_epoch + 1) / trainer.max_epochs, trainer.datamodule
        if done >= self.start:
            loader = data.plain_train_dataloader()
            logits, target, _ = outputs_of(trainer, pl_module, data, loader)
            held = float(trainer.callback_metrics["val/nll"])
            r = 1 - float(cross_entropy(logits.double(), target)) / held
            self.average += (1 - self.decay) * (min(1.0, r / done) - self.average)
        self.strengths.append(min(1.0, max(0.0, 2 * (self.average - 0.4))))
        if trainer.is_global_zero:
            write_json(Path(trainer.default_root_dir, "strengths.json"), self.strengths)
