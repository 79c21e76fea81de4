"""Resume with the same noise: one line for each framework.

The counters of an attachment are not part of the model's ``state_dict``. With
``handle = chaosgate.attach(...)``:

* torch: ``torch.save({"model": model.state_dict(), "noise": handle.state_dict()}, file)``, and
  ``handle.load_state_dict(torch.load(file)["noise"])``
* timm: ``CheckpointSaver(model, optimizer, amp_scaler=timm_state(handle, loss_scaler))``, and
  ``resume_checkpoint(model, file, optimizer, timm_state(handle, loss_scaler))``
* Hugging Face: ``Trainer(..., callbacks=[trainer_callback(handle)])``
* accelerate: ``accelerator.register_for_checkpointing(handle)``
* Fabric: ``fabric.save(file, {"model": model, "noise": handle})``, and ``fabric.load`` with the
    same dict
* Lightning: :class:`~chaosgate.NoiseInjection` does it by itself

Without this line the noise starts again at step 0, with a warning.
"""

from typing import Any


def trainer_callback(handle: Any) -> Any:
    """A ``TrainerCallback`` of transformers that keeps the counters in ``trainer_state.json``."""
    from transformers import TrainerCallback

    class NoiseState(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if "chaosgate" in (state.stateful_callbacks or {}):
                handle.load_state_dict(state.stateful_callbacks["chaosgate"])

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            state.stateful_callbacks["chaosgate"] = handle.state_dict()

    return NoiseState()


class timm_state:  # noqa: N801 - used like a function
    """For timm, which saves it as a loss scaler: the counters, and the scaler's state if any."""

    state_dict_key = "amp_scaler"

    def __init__(self, handle: Any, loss_scaler: Any = None) -> None:
        self.handle, self.loss_scaler = handle, loss_scaler

    def state_dict(self) -> dict[str, Any]:
        scaler = {} if self.loss_scaler is None else self.loss_scaler.state_dict()
        return {**scaler, "noise": self.handle.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        scaler = dict(state)
        self.handle.load_state_dict(scaler.pop("noise"))
        if self.loss_scaler is not None:
            self.loss_scaler.load_state_dict(scaler)
