"""The contract of ``attach``, by number, on what went wrong in other people's networks and
loops."""

import copy
import warnings

import pytest
import timm
import torch
import torchvision
from lightning.fabric import Fabric
from torch import nn

import chaosgate as cg
from chaosgate.inject.integrations import timm_state, trainer_callback
from chaosgate.inject.layout import LOOPS, PLACEMENT, ChaosgateError
from tests.inject.networks import build, gate, gated, images

# places that were wrong: L4 of networks whose declaration is not the last place, or not one at all
PLACES = {
    "ghostnet_050": ("blocks.9", 64),
    "repghostnet_050": ("blocks.9", 64),
    "twins_svt_small": ("norm", 96),
    "tresnet_m": ("body.layer4", 64),
}


@pytest.mark.parametrize("name", PLACES)
def test_5_a_stage_is_the_last_place_of_its_resolution(name):
    module, side = PLACES[name]
    size = {"img_size": side} if "twins" in name else {}
    model = timm.create_model(name, num_classes=10, **size)
    assert cg.resolve_stages(model, images(side, batch=2))["L4"] == module


def test_6_class_scores_are_not_a_stage():
    model = torchvision.models.squeezenet1_1(num_classes=10)
    assert cg.resolve_stages(model, images(96, batch=2))["L4"].startswith("features")


def test_6_parallel_resolutions_are_refused():
    model = timm.create_model("coat_tiny", img_size=64, num_classes=10)
    with pytest.raises(ChaosgateError, match="no stage L4"):
        cg.attach(model, gate(), "L4")


@pytest.mark.parametrize("name", ["deit3_small_patch16_224", "mixer_s32_224"])
def test_5_the_declared_image_size_is_used(name):
    model = timm.create_model(name, img_size=96, num_classes=10)
    cg.attach(model, gate(), "L4").remove()


def test_13_layer_scale_at_initialization_is_not_taken_for_a_norm():
    model = timm.create_model("cait_xxs24_224", img_size=64, num_classes=10).train()
    with cg.attach(model, gate(), "L4") as handle:
        model(images(64))
        assert handle.fired == 1


def test_10_one_gate_per_tensor():
    with gated(stages=["layer4", "layer4.0"]) as (model, x, _):
        with pytest.raises(ValueError, match="'layer4' returns the tensor that 'layer4.0' return"):
            model(x)


def test_11_the_noise_of_a_fabric_module_is_that_of_its_module():
    def logits(wrap):
        model, x = build("timm resnet")
        model = wrap(model.train())
        with cg.attach(model, gate(), "L4", check=False):
            return model(x).detach()

    fabric = Fabric(accelerator="cpu", devices=1)
    assert torch.equal(logits(fabric.setup_module), logits(lambda model: model))


def test_13_the_check_runs_in_training_mode():
    # in evaluation mode the statistics of fresh BatchNorms make the output of this network almost
    # constant
    model = timm.models.convmixer.ConvMixer(dim=64, depth=8, patch_size=7, num_classes=10).train()
    with cg.attach(model, gate(), "blocks.3") as handle:
        model(images(56))
        assert handle.fired == 1


def test_14_a_replaced_module_is_an_error_of_chaosgate():
    with gated() as (model, x, _):
        model.layer4 = copy.deepcopy(model.layer4)
        with pytest.raises(ChaosgateError, match="was replaced"):
            model(x)


@pytest.mark.parametrize("coupled", [True, False])
def test_coupled_stages_share_one_field(coupled):
    """The field of L4 has the latent grid; that of L3 is the same one, resized."""
    model, x = build("timm resnet")
    x = torch.ones(4, 3, 32, 32) * torch.rand(4, 1, 1, 1)
    gates = {stage: gate(log_std=0.5, base_size=[4, 4]) for stage in ("L3", "L4")}
    with cg.attach(model.eval(), gates, coupled=coupled, check=False) as handle, torch.no_grad():
        with handle.forced(0, record=True) as maps:
            model(x)
    pairs = (maps[site.module] for site in handle.sites)
    fine, coarse = ((after / before).nanmedian(1).values.log() for before, after in pairs)
    resized = nn.functional.interpolate(coarse[:, None], (8, 8), mode="bilinear")
    found = torch.corrcoef(torch.stack((fine.flatten(1)[0], resized.flatten(1)[0])))[0, 1]
    assert found > 0.999 if coupled else found.abs() < 0.9


def test_15_every_refusal_has_a_remedy():
    assert all(message.endswith((".", "}")) for message in (*PLACEMENT.values(), *LOOPS.values()))
    assert not set(PLACEMENT) & set(LOOPS)


# -- 12: resuming ----------------------------------------------------------------------------------


def trained(steps, optimizer_state=None, noise_state=None):
    model, x = build("timm resnet")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if optimizer_state is not None:
        optimizer.load_state_dict(optimizer_state)
    with cg.attach(model.train(), gate(), "L4", check=False) as handle:
        if noise_state is not None:
            handle.load_state_dict(noise_state)
        for _ in range(steps):
            model(x).square().mean().backward()
            optimizer.step()
        return optimizer.state_dict(), handle.state_dict()


def test_12_a_warning_if_the_optimizer_continues_and_the_noise_does_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer, noise = trained(2)
        trained(1, optimizer, noise)
    with pytest.warns(UserWarning, match="counters of the gates were not restored"):
        trained(1, optimizer)


def test_12_timm_fabric_and_transformers_save_the_counters(tmp_path):
    with gated() as (model, x, handle):
        model(x)
        file, fabric = tmp_path / "fabric.ckpt", Fabric(accelerator="cpu", devices=1)
        saved, both = timm_state(handle).state_dict(), {"model": model, "noise": handle}
        fabric.save(file, both)
        state = type("State", (), {"stateful_callbacks": {}})()
        trainer_callback(handle).on_step_end(None, state, None)
        for restore in (
            lambda: timm_state(handle).load_state_dict(saved),
            lambda: fabric.load(file, both),
            lambda: trainer_callback(handle).on_train_begin(None, state, None),
        ):
            model(x)
            assert handle.step > 1
            restore()
            assert handle.step == 1
