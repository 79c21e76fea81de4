"""One table of (network, loop, what must happen): each row ends in the right numbers or in the named error."""

import copy
import io
import pickle

import pytest
import timm
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import chaosgate as cg
from chaosgate.inject.calls import logits
from tests.inject import networks
from tests.inject.networks import FAMILIES, Dense, Returning, Sequence, Shared, Wrapper, images


def gate(**settings):
    return cg.GaussianChaos(**(settings or {"log_std": 1.0}))


def build(name):
    torch.manual_seed(0)
    model, x = FAMILIES[name][0]() if name in FAMILIES else getattr(networks, name)()
    for module in model.modules():  # drop-path and dropout draw from the global stream; here only gates may move things
        if "drop" in type(module).__name__.lower():
            for attribute in ("p", "drop_prob"):
                if hasattr(module, attribute):
                    setattr(module, attribute, 0.0)
    return model, x


def features_of(model, module):
    """Outputs of a module, in the order of its calls."""
    seen = []
    found = model.get_submodule(module)
    found.register_forward_hook(lambda m, args, output: seen.append(output if torch.is_tensor(output) else output[0]))
    return seen


# -- every family ------------------------------------------------------------------------------------------------------


def plain(model, x, grid, channels):
    """Fresh positive gates of mean one on the true grid, one for all channels; none in evaluation; keys untouched."""
    with torch.no_grad():
        weights, bare = copy.deepcopy(model.state_dict()), logits(model.eval()(x))
    with cg.attach(model, gate(), "L3") as handle, torch.no_grad():
        report = handle.check(x)[0]
        assert (report.grid, report.channels) == (grid, channels)
        site = handle.sites[0]
        seen = features_of(model, site.module)
        model.train()
        first, second = logits(model(x)), logits(model(x))
        assert not torch.equal(first, second) and (handle.step, handle.fired) == (2, 2)
        assert list(model.state_dict()) == list(weights)
        model.load_state_dict(weights)  # running statistics
        assert torch.equal(logits(model.eval()(x)), bare)
        plain_map = site.layout.to_map(seen[-1]).double()
        with handle.forced(1):
            model(x)
        ratio = site.layout.to_map(seen[-1]).double() / plain_map
        firm = plain_map.abs() > 1e-2 * plain_map.abs().mean()
        shared = torch.where(firm, ratio, torch.nan).nanmedian(1, keepdim=True).values
        assert torch.allclose(ratio[firm], shared.expand_as(ratio)[firm], rtol=1e-3)
        known = shared[~shared.isnan().flatten(1).any(1)]
        assert torch.allclose(known.flatten(1).mean(1), torch.ones(len(known), dtype=torch.float64), atol=1e-3)


def copies(model, x, grid, channels):
    """A copy is a plain network: without hooks, equal in evaluation, trainable by itself, during and after."""
    with torch.no_grad():
        weights, bare = copy.deepcopy(model.state_dict()), logits(model.eval()(x))
    handle = cg.attach(model, gate(), "L3")
    twin = copy.deepcopy(model.train())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in twin.modules())
    with torch.no_grad():
        assert torch.equal(logits(twin.eval()(x)), bare)
        model.eval()
        logits(twin.train()(x))
        handle.remove()
        twin.load_state_dict(weights)  # running statistics
        assert torch.equal(logits(twin.eval()(x)), bare)


def wrapped(model, x, grid, channels):
    """Inside another module: the same stages by name, the same grid."""
    inner = cg.resolve_stages(model, x[:1])
    outer = Wrapper(model)
    assert cg.resolve_stages(outer, x[:1]) == {stage: f"backbone.{name}" for stage, name in inner.items()}
    with cg.attach(outer, gate(), "L3") as handle:
        report = handle.check(x)[0]
    assert (report.grid, report.channels) == (grid, channels)


@pytest.mark.parametrize("loop", [plain, copies, wrapped])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, loop):
    model, x = build(family)
    loop(model, x, *FAMILIES[family][1:])


# -- loops that people write -------------------------------------------------------------------------------------------


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def ema():
    """1: timm's ModelEmaV3 and torch's AveragedModel evaluate the plain network."""
    model, x = build("timm resnet")
    bare = model.eval()(x).detach()
    with cg.attach(model.train(), gate(), "L4"):
        for average in (timm.utils.ModelEmaV3(model), AveragedModel(model)):
            assert torch.equal(average.module.eval()(x), bare)
            average.train()
            assert torch.equal(average.module(x), average.module(x))


def saved():
    """1: what pickle and torch.save bring back is plain, and saving says so."""
    model, x = build("timm resnet")
    bare = model.eval()(x).detach()
    with cg.attach(model, gate(), "L4"):
        with pytest.warns(UserWarning, match="plain network"):
            back = pickle.loads(pickle.dumps(model))
        file = io.BytesIO()
        with pytest.warns(UserWarning, match="plain network"):
            torch.save(model, file)
    file.seek(0)
    for loaded in (back, torch.load(file, weights_only=False)):
        assert torch.equal(loaded.eval()(x), bare)
        assert torch.equal(loaded.train()(x), loaded(x))
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in loaded.modules())


def shallow_copy():
    """1: copies that share hooks are refused in training."""
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4", check=False):
        with pytest.raises(RuntimeError, match="belongs to another.*DataParallel"):
            copy.copy(model)(x)


def handle_cannot_be_copied():
    model, _ = build("timm resnet")
    with cg.attach(model, gate(), "L4") as handle, pytest.raises(TypeError, match="belongs to its model"):
        copy.deepcopy(handle)


def forward_features():
    """2: fresh noise when the model is entered otherwise, replayed by the counter."""

    def run(start):
        model, x = build("timm resnet")
        with cg.attach(model.train(), gate(), ["L3", "L4"], check=False) as handle:
            handle.load_state_dict({"step": start, "fired": 0})
            found = [model.forward_head(model.forward_features(x)).detach() for _ in range(3)]
            return torch.stack(found), handle.step

    whole, step = run(0)
    assert not torch.equal(whole[0], whole[1]) and not torch.equal(whole[1], whole[2]) and step == 6
    assert torch.equal(run(2)[0][:2], whole[1:])  # a step for every pass of each of the two sites


def frozen_site():
    """3: the model trains, the site is in evaluation mode."""
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4", check=False) as handle:
        model.layer4.eval()
        with pytest.raises(RuntimeError, match="'layer4' is in evaluation mode while the model trains"):
            model(x)
        assert handle.fired == 0


def root_in_evaluation():
    """3: the root is in evaluation mode, the site trains: the gate follows its site."""
    model, x = build("timm resnet")
    with cg.attach(model.eval(), gate(), "L4", check=False) as handle:
        plain = model(x)
        model.layer4.train()
        assert not torch.allclose(model(x), plain) and handle.fired == 1 and handle.step == 1


def frozen_batchnorm():
    """3: batch norms in evaluation mode do not silence the gate."""
    model, x = build("timm resnet")
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    with cg.attach(model, gate(), "L4") as handle:
        assert not torch.equal(model(x), model(x)) and handle.fired == 2


def frozen_parameters():
    model, x = build("timm resnet")
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is model.fc.weight)
    with cg.attach(model.train(), gate(), "L4") as handle:
        model(x).square().mean().backward()
        first = model.fc.weight.grad.clone()
        model.fc.weight.grad = None
        model(x).square().mean().backward()
        assert not torch.equal(first, model.fc.weight.grad) and handle.step == 2


def conv1d():
    """4: features of a sequence are a line, not a square; without a field on lines they are refused."""
    model, x = Sequence(), torch.randn(3, 4, 50)
    with cg.attach(model.train(), gate(), "body", check=False) as handle:
        try:
            model(x)
        except ValueError as error:
            assert "(3, 64, 50)" in str(error)
        else:
            assert handle.sites[0].layout.kind == "NCL"


def dynamic_image_size():
    """4: the true rows and columns of a ViT whose images change."""
    model, _ = networks.timm_vit(dynamic_img_size=True)
    for shape, grid in (((32, 128), (2, 8)), ((64, 64), (4, 4)), ((96, 32), (6, 2))):
        with cg.attach(model.eval(), gate(), "blocks.1", check=False) as handle, torch.no_grad():
            with handle.forced(1, record=True):
                model(torch.randn(1, 3, *shape))
            assert tuple(handle.sites[0].before.shape[2:]) == grid
            with handle.forced(1, record=True):
                model.forward_features(torch.randn(1, 3, *shape))
            assert tuple(handle.sites[0].before.shape[2:]) == grid


def unrolled_tokens():
    """4: tokens in an order of the network's own."""
    model, x = build("timm_hiera")
    with cg.attach(model.train(), gate(), "blocks.0", check=False):
        with pytest.raises(ValueError, match="not row by row"):
            model(x)


def ambiguous_map():
    """4: two readings are refused by name, and either can be said."""

    class Twisted(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.mix, self.head = nn.Conv2d(3, 8, 4, 4), nn.Identity(), nn.Linear(8, 5)

        def forward(self, x):
            return self.head(self.mix(self.stem(x).permute(0, 2, 3, 1)).mean((1, 2)))

    model, x = Twisted().train(), images(32)
    with cg.attach(model, gate(), "mix"), pytest.raises(ValueError, match="layout='NCHW'.*layout='NHWC'"):
        model(x)
    with cg.attach(model, gate(), "mix", layout="NHWC") as handle:
        report = handle.check(x)[0]
        assert report.layout == "NHWC" and report.logit_change > 1e-3
    with cg.attach(model, gate(), "mix") as handle:
        assert handle.check(images(32, width=64))[0].grid == (8, 16)  # the shape of the image tells


def unknown_tokens():
    """4: tokens of a network nobody knows need a grid; a class token in front of it is left alone."""
    body = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6))
    model, x = nn.Sequential(body, nn.Flatten(), nn.Linear(78, 4)).train(), torch.randn(2, 13, 6)
    with cg.attach(model, gate(), "0"), pytest.raises(ValueError, match="layout='NCL'.*layout='NLC'"):
        model(x)
    with cg.attach(model, gate(), "0", grid=(3, 4)) as handle:
        model(x)
        assert (handle.sites[0].layout.grid, handle.sites[0].layout.prefix) == ((3, 4), 1)
    with cg.attach(model, gate(), "0", grid=(5, 5)), pytest.raises(ValueError, match="13 tokens.*25 sites"):
        model(x)


def bad_layout():
    model, _ = build("timm resnet")
    with pytest.raises(ValueError, match="layout is one of NCL"):
        cg.attach(model, gate(), "L4", layout="CHW")
    with pytest.raises(ValueError, match="grid is the number of sites"):
        cg.attach(model, gate(), "L4", grid=7)


def checkpointed(views, use_reentrant=False, together=True):
    """Gradients with and without activation checkpointing of the gated stage, several forwards before a backward."""

    def run(active):
        model, x = build("timm resnet")
        inner = model.layer4
        gated = nn.Sequential(inner[0], nn.ReLU())
        model.layer4 = gated
        if active:
            forward = gated.forward
            model.layer4.forward = lambda h: checkpoint(lambda y: forward(y), h, use_reentrant=use_reentrant)
        with cg.attach(model.train(), gate(), "layer4.0", check=False) as handle:
            losses = [model(x + k).square().mean() for k in range(views)]
            if together:
                sum(losses).backward()
            else:
                for loss in losses:
                    loss.backward()
            assert handle.fired == views
        return gradients(model)

    assert torch.allclose(run(True), run(False), rtol=1e-4, atol=1e-7)


def checkpointed_whole_model():
    def run(active):
        model, x = build("timm resnet")
        with cg.attach(model.train(), gate(), "L4", check=False):
            first, second = (
                checkpoint(model, x + k, use_reentrant=False) if active else model(x + k) for k in range(2)
            )
            (first.square().mean() + second.square().mean()).backward()
        return gradients(model)

    assert torch.allclose(run(True), run(False), rtol=1e-4, atol=1e-7)


def checkpointed_other_entry_twice():
    """5: two passes outside of a forward of the model: nobody can tell them apart."""
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "layer4", check=False):
        losses = []
        for k in range(2):
            h = model.layer3(model.layer2(model.layer1(model.act1(model.bn1(model.conv1(x + k))))))
            losses.append(checkpoint(lambda y: model.layer4(y).relu().square(), h, use_reentrant=False).mean())
        with pytest.raises(RuntimeError, match="no way to tell.*2 forwards wait"):
            sum(losses).backward()


def checkpointed_shared_module():
    """5, 6: a module that runs twice in a forward and is recomputed."""
    model, x = Shared().train(), images(8)
    body = model.block.forward
    model.block.forward = lambda h: body(h)
    forward = model.forward
    del forward

    def run(x):
        h = checkpoint(lambda y: model.block(y).square(), model.stem(x), use_reentrant=False)
        h = checkpoint(lambda y: model.block(y).square(), h, use_reentrant=False)
        return model.head(h.mean((2, 3)))

    model.forward = run
    with cg.attach(model, gate(), "block", check=False), pytest.raises(RuntimeError, match="ran 2 times"):
        model(x).square().mean().backward()


def hidden_by_checkpointing():
    model, x = build("timm resnet")
    model.set_grad_checkpointing(True)
    with cg.attach(model.train(), gate(), "L4", check=False):
        with pytest.raises(RuntimeError, match=r"never fired.*activation checkpointing.*layer4\.0"):
            model(x)


def attached_twice():
    """6: a second gate is refused with the way to the first."""
    model, x = build("timm resnet")
    first = cg.attach(model, gate(), "L4")
    with pytest.raises(ValueError, match="'layer4' already has a gate.*GaussianChaos"):
        cg.attach(model, cg.Dropout(0.1), "layer4")
    assert cg.Attachment.on(model) == [first]
    first.remove()
    cg.attach(model, cg.Dropout(0.1), "layer4").remove()


def one_place_two_names():
    model, _ = build("timm resnet")
    with pytest.raises(ValueError, match="'L4' and 'layer4' are the same place"):
        cg.attach(model, gate(), ["L4", "layer4"])


def reused_module():
    """6: a module that runs twice in a forward draws twice."""
    model, x = Shared().train(), images(8)
    drawn = []

    class Noting(cg.Gate):
        def perturb(self, h, noise):
            drawn.append(noise.normal((4,)))
            return h * 1.1

    with cg.attach(model, Noting(), "block", check=False) as handle:
        model(x)
        model(x)
    assert len({tuple(d.tolist()) for d in drawn}) == 4 and handle.fired == 4 and handle.step == 2


def zero_head():
    """8: a head that starts at zero hides the gate; the features in front of it show it."""
    for model, x, module in ((*build("timm_mixer"), "blocks.2"), (*build("timm resnet"), "L4")):
        if module == "L4":
            nn.init.zeros_(model.fc.weight)
        with cg.attach(model.train(), gate(), module) as handle:
            model(x)
            report = handle.check(x)[0]
            assert report.compared in ("head", "fc") and report.logit_change > 1e-3


def weak_gate():
    """8: weak is not lost."""
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(log_std=1e-4), "L4") as handle:
        model(x)
        assert handle.fired == 1


def dial_at_zero():
    """8, 9: a schedule that starts at nothing passes the check; remove() puts the dial back."""
    model, x = build("timm resnet")
    one = gate()
    with cg.attach(model.train(), one, "L4") as handle:
        handle.set_dial(0.0)
        assert torch.equal(model(x), model(x))
        handle.set_dial(1.0)
        assert not torch.equal(model(x), model(x))
        handle.set_dial(0.3)
    assert one.dial is None


def refusal_stands():
    """8: what was refused is refused again, until something changes."""
    model, x = build("timm swin")
    nn.init.normal_(model.patch_embed.proj.weight, std=10.0)  # far above the epsilon of the norms
    with cg.attach(model.train(), gate(), "layers.3") as handle:
        for _ in range(2):
            with pytest.raises(ValueError, match="normalisation right behind.*L4 \\(norm\\)"):
                model(x)
        assert handle.fired == 0


def nobody_reads():
    """8: the cause is told apart."""

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

        def forward(self, x):
            self.idle(x)
            return self.used(x).mean((2, 3))

    model = Idle().train()
    with cg.attach(model, gate(), "idle"), pytest.raises(ValueError, match="Nothing that the logits depend on reads"):
        model(images(8))


def dense_monte_carlo():
    """10: the class axis of dense outputs is said, not guessed."""
    model, x = Dense().eval(), images(8)
    with cg.attach(model, gate(), "body") as handle, torch.no_grad():
        with handle.monte_carlo(3), pytest.raises(ValueError, match="class_axis"):
            model(x)
        parts = []
        for draw in (1, 2, 3):
            with handle.forced(draw):
                parts.append(model(x).softmax(1))
        with handle.monte_carlo(3, class_axis=1):
            mean = model(x)
        assert torch.allclose(mean.exp(), torch.stack(parts).mean(0), atol=1e-6)
        assert handle.uncertainty["entropy"].shape == (4, 8, 8)
        with handle.monte_carlo(3, class_axis=0), pytest.raises(ValueError, match="not an axis of classes"):
            model(x)


def structured(kind):
    """11: dict, tuple and dataclass outputs: checked, gated, averaged."""
    torch.manual_seed(0)
    model, x = Returning(kind), images(32)
    with cg.attach(model.train(), gate(), "L4") as handle:
        assert handle.sites[0].module == "backbone.layer4"
        assert not torch.equal(logits(model(x)), logits(model(x)))
        with torch.no_grad(), handle.monte_carlo(2):
            averaged = model.eval()(x)
        assert type(averaged) is type(model(x))
        assert torch.allclose(logits(averaged).exp().sum(-1), torch.ones(4), atol=1e-5)


def second_argument():
    """11: the check calls the model as the loop does."""
    model, x = Returning("tensor", second=True).train(), images(32)
    with cg.attach(model, gate(), "L4") as handle:
        model(x, 2.0)
        model(x, scale=torch.full((4, 1), 2.0))
        assert handle.fired == 2


def mvit():
    """11: tokens that come with their grid beside them."""
    model, x = build("timm_mvit")
    with cg.attach(model.eval(), gate(), "stages.1", check=False) as handle:
        with torch.no_grad(), handle.forced(1, record=True):
            model(x)
        assert tuple(handle.sites[0].before.shape[2:]) == (28, 28)
        with pytest.raises(ValueError, match="normalisation right behind the site"):
            handle.check(x)
    with cg.attach(model.eval(), gate(), "L3") as handle:
        assert handle.check(x)[0].grid == (14, 14)


def several_tensors():
    model, x = build("huggingface swin")
    with cg.attach(model.train(), gate(), "swin.encoder.layers.0", check=False):
        with pytest.raises(ValueError, match="needs one map.*Name another module"):
            model(x)


def several_gates():
    """One call, several strengths, each at its stage."""
    model, x = build("timm resnet")
    with cg.attach(model, {"L3": gate(log_std=0.5), "L4": gate(log_std=1.0)}) as handle:
        found = {report.stage: report.nominal["log_std"] for report in handle.check(x)}
    assert found == pytest.approx({"L3": 0.5, "L4": 1.0})
    with pytest.raises(ValueError, match="leave stages out"):
        cg.attach(model, {"L3": gate()}, "L4")
    with pytest.raises(TypeError, match="Gate at L4"):
        cg.attach(model, {"L4": nn.Identity()})


def accumulation():
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4") as handle:
        for _ in range(3):
            (model(x).square().mean() / 3).backward()
        assert (handle.step, handle.fired) == (3, 3)


def autocast():
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4") as handle, torch.autocast("cpu", torch.bfloat16):
        first, second = model(x), model(x)
        assert first.dtype == torch.bfloat16 and not torch.equal(first, second) and handle.fired == 2


def channels_last():
    model, x = build("timm resnet")
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    with cg.attach(model.eval(), gate(), "L3", check=False) as handle, torch.no_grad():
        with handle.forced(1, record=True):
            model(x)
        assert handle.sites[0].after.is_contiguous(memory_format=torch.channels_last)
        assert handle.sites[0].layout.kind == "NCHW"


def without_gradient():
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4") as handle, torch.no_grad():
        assert not torch.equal(model(x), model(x)) and handle.step == 2


def resumed():
    def run(start, steps):
        model, x = build("timm resnet")
        with cg.attach(model.train(), gate(), "L4", check=False) as handle:
            handle.load_state_dict({"step": start, "fired": start})
            return torch.stack([model(x).detach() for _ in range(steps)]), handle.state_dict()

    whole, state = run(0, 4)
    assert torch.equal(whole[2:], run(2, 2)[0]) and state == {"step": 4, "fired": 4}


def after_an_error():
    """A forward that fails leaves nothing behind that the next one would notice."""
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4", check=False) as handle:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 7, 32, 32))
        first, second = model(x), model(x)
        assert not torch.equal(first, second) and handle.fired == 2


LOOPS = [
    *(ema, saved, shallow_copy, handle_cannot_be_copied, forward_features, frozen_site, root_in_evaluation),
    *(frozen_batchnorm, frozen_parameters, conv1d, dynamic_image_size, unrolled_tokens, ambiguous_map, unknown_tokens),
    *(bad_layout, checkpointed_whole_model, checkpointed_other_entry_twice, checkpointed_shared_module),
    *(hidden_by_checkpointing, attached_twice, one_place_two_names, reused_module, zero_head, weak_gate, dial_at_zero),
    *(refusal_stands, nobody_reads, dense_monte_carlo, second_argument, mvit, several_tensors, several_gates),
    *(accumulation, autocast, channels_last, without_gradient, resumed, after_an_error),
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_loops(loop):
    torch.manual_seed(0)
    loop()


@pytest.mark.parametrize("kind", ["dict", "tuple", "dataclass"])
def test_outputs(kind):
    structured(kind)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("views", "together"), [(1, True), (2, True), (2, False), (3, True)])
def test_gradients_under_activation_checkpointing(views, together, reentrant):
    """5: the draw of a forward stays with it, whichever forwards come between."""
    checkpointed(views, reentrant, together)


def test_the_table_is_long_enough():
    assert len(FAMILIES) * 3 + len(LOOPS) + 3 + 8 >= 60
