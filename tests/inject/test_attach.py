import pytest
import timm
import torch

import chaosgate as cg
from chaosgate.inject.effect import MINIMAL_CHANGE, relative_change

BACKBONES = {  # image size: the smallest at which the last grid has several sites
    "resnet18": 96,
    "resnet50": 96,
    "swin_tiny_patch4_window7_224": 224,
    "convnext_tiny": 96,
    "efficientnet_b0": 96,
    "regnety_004": 96,
    "mobilenetv3_small_100": 96,
    "densenet121": 96,
    "vit_small_patch16_224": 224,
}


def images(size, batch=2, seed=0):
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_feels_the_gate_at_every_stage(name):
    torch.manual_seed(0)
    model = timm.create_model(name)
    x = images(
        BACKBONES[name], batch=2 if BACKBONES[name] < 200 else 1
    )  # batch statistics need two images
    bare = model.eval()(x).detach()
    keys = list(model.state_dict())
    for stage in ("L2", "L3", "L4"):
        plain_state = {k: v.clone() for k, v in model.state_dict().items()}
        model.train()
        torch.manual_seed(1)  # drop-path and the like draw from the global stream
        plain = model(x).detach()
        model.load_state_dict(plain_state)
        with cg.attach(model, cg.GaussianChaos(log_std=1.0), [stage]) as handle:
            torch.manual_seed(1)
            logits = model(x)
            assert relative_change(plain, logits.detach()) > MINIMAL_CHANGE
            logits.square().sum().backward()
            assert handle.fired == 1
            assert list(model.state_dict()) == keys
            model.load_state_dict(plain_state)  # what a training forward did to running statistics
            assert torch.equal(model.eval()(x), bare)
        model.zero_grad()
        assert torch.equal(model.eval()(x), bare)


def test_stages_resolve_to_sites_where_a_gate_survives():
    def resolved(name):
        return cg.resolve_stages(timm.create_model(name))

    assert resolved("resnet50") == {f"L{k}": f"layer{k}" for k in (1, 2, 3, 4)}
    assert resolved("swin_tiny_patch4_window7_224")["L4"] == "norm"
    assert resolved("convnext_tiny") == {
        "L1": "stages.1.downsample.0",
        "L2": "stages.2.downsample.0",
        "L3": "stages.3.downsample.0",
        "L4": "stages.3",
    }
    assert resolved("vit_small_patch16_224") == {
        "L1": "blocks.2",
        "L2": "blocks.4",
        "L3": "blocks.7",
        "L4": "blocks.9",
    }


@pytest.mark.parametrize(
    ("stage", "message"),
    [("L5", "no stage or module 'L5'.*L1, L2, L3, L4"), ("layre4", "Did you mean 'layer4'")],
)
def test_unknown_stage_is_refused(stage, message):
    with pytest.raises(ValueError, match=message):
        cg.attach(timm.create_model("resnet18"), cg.GaussianChaos(log_std=1.0), [stage])


@pytest.mark.parametrize("stages", [[], ["L4", "L4"]])
def test_no_stage_and_a_stage_twice_are_refused(stages):
    with pytest.raises(ValueError, match="one gate and stages, each once"):
        cg.attach(timm.create_model("resnet18"), cg.GaussianChaos(log_std=1.0), stages)


@pytest.mark.parametrize(
    ("name", "module", "works"),
    [
        ("swin_tiny_patch4_window7_224", "layers.3", "norm"),
        ("vit_small_patch16_224", "blocks.11", "blocks.9"),
    ],
)
def test_a_gate_that_is_normalised_away_is_refused_with_sites_that_work(name, module, works):
    model = timm.create_model(name).train()
    with cg.attach(model, cg.GaussianChaos(log_std=1.0), [module]):
        with pytest.raises(ValueError, match=f"does not reach the output.*{works}"):
            model(images(224, batch=1))


@pytest.mark.parametrize(
    ("log_std", "batch", "says"),
    [
        (1e-9, 2, "changes nothing on this batch.*the gate leaves the features as they are"),
        (1.0, 0, "the batch is empty"),
    ],
)
def test_what_no_normalisation_has_done_is_not_blamed_on_one(log_std, batch, says):
    model = timm.create_model("resnet18").train()
    with cg.attach(model, cg.GaussianChaos(log_std=log_std), ["L3"]):
        with pytest.raises(ValueError, match=says) as refusal:
            model(images(64, batch=batch))
    assert "normalisation" not in str(refusal.value)


def test_samplewise_gate_on_one_site_is_refused():
    model = timm.create_model("resnet18").train()
    with cg.attach(model, cg.GaussianChaos(log_std=1.0), ["L4"]):
        with pytest.raises(ValueError, match="grid 1x1"):
            model(images(32))


def test_checking_leaves_no_trace():
    model = timm.create_model("resnet18").train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(4)
    stream = torch.get_rng_state()
    with cg.attach(model, cg.GaussianChaos(log_std=1.0), ["L4"]) as handle:
        reports = handle.check(images(64))
        assert handle.step == 0 and handle.fired == 0
    assert torch.equal(stream, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert (
        reports[0].grid == (2, 2) and reports[0].energy > 0 and 0 < reports[0].positive_share <= 1
    )


def run(seed=0, rank=0):
    torch.manual_seed(0)
    model = timm.create_model("resnet18").train()
    with cg.attach(
        model, cg.GaussianChaos(log_std=1.0), ["L3", "L4"], seed=seed, rank=rank, check=False
    ):
        return torch.stack([model(images(64, seed=k)).detach() for k in range(3)])


def test_noise_is_a_function_of_seed_rank_and_step():
    whole = run()
    assert torch.equal(whole, run())
    assert not torch.equal(whole, run(seed=1))
    assert not torch.equal(whole, run(rank=1))


def test_the_global_stream_is_never_drawn_from():
    model = timm.create_model("resnet18").train()
    x = images(64)
    torch.manual_seed(9)
    stream = torch.get_rng_state()
    for gate in (
        cg.GaussianChaos(log_std=1.0),
        cg.Dropout(0.1),
        cg.DropBlock(0.1),
        cg.IIDGaussian(0.1),
    ):
        with cg.attach(model, gate, ["L4"]):
            model(x)
    assert torch.equal(stream, torch.get_rng_state())


def test_recomputation_under_activation_checkpointing_sees_the_same_gate():
    def gradients(checkpointing):
        torch.manual_seed(0)
        model = timm.create_model("resnet18").train()
        model.set_grad_checkpointing(checkpointing)
        with cg.attach(model, cg.GaussianChaos(log_std=1.0), ["layer4.1"], check=False):
            model(images(64)).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    assert torch.allclose(gradients(True), gradients(False), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "vit_small_patch16_224"])
def test_features_of_other_layouts_go_back_where_they_came_from(name):
    model = timm.create_model(name).eval()
    seen = []
    with (
        cg.attach(model, cg.GaussianChaos(log_std=1.0), ["L3"], check=False) as handle,
        torch.no_grad(),
    ):
        site = handle.sites[0]
        module = dict(model.named_modules())[site.module]
        hook = module.register_forward_hook(lambda m, a, out: seen.append(out))
        model(images(224, batch=1))
        with handle.forced(draw=1, record=True) as maps:
            model(images(224, batch=1))
        hook.remove()
    plain, gated = seen
    prefix = 1 if plain.ndim == 3 else 0
    if prefix:  # the class token is not on the grid
        assert torch.equal(plain[:, :1], gated[:, :1])
    ratio = (gated[:, prefix:].double() / plain[:, prefix:].double()).flatten(
        1, -2
    )  # (1, sites, channels)
    assert ratio.shape[1] == 196
    assert torch.allclose(
        ratio, ratio.median(-1, keepdim=True).values, rtol=1e-3
    )  # one gate for all channels
    assert torch.allclose(
        ratio.median(-1).values.mean(1), torch.ones(1, dtype=torch.float64), atol=1e-4
    )
    assert maps[site.module][0].shape[2:] == (14, 14)


def test_monte_carlo_averages_probabilities_and_measures_disagreement():
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=7).eval()
    x = images(64, batch=3)
    with cg.attach(model, cg.GaussianChaos(log_std=1.5), ["L4"]) as handle, torch.no_grad():
        plain = model(x)
        parts = []
        for draw in (1, 2, 3):
            with handle.forced(draw):
                parts.append(model(x).softmax(-1))
        with handle.monte_carlo(3):
            averaged = model(x)
        assert torch.allclose(averaged.exp(), torch.stack(parts).mean(0), atol=1e-6)
        assert torch.equal(model(x), plain)  # and after it evaluation is the identity again
        entropy = -(averaged.exp() * averaged).sum(-1)
        assert torch.allclose(handle.uncertainty["entropy"], entropy, atol=1e-6)
        assert (handle.uncertainty["mutual_information"] >= 0).all()
        with handle.monte_carlo(3, step=1):
            assert not torch.equal(model(x), averaged)
