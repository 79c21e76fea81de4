import pytest
import torch

import chaosgate as cg
from tests.inject.networks import FAMILIES, Dense, images


@pytest.mark.parametrize("family", ["timm resnet", "torchvision swin", "huggingface convnext"])
def test_stages_are_among_the_sites_and_survive(family):
    torch.manual_seed(0)
    build, grid, channels = FAMILIES[family]
    model, x = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = {site.stage: site for site in cg.sites(model, x)}
    assert {"L2", "L3", "L4"} <= set(found)
    assert (found["L3"].grid, found["L3"].channels) == (grid, channels)
    assert all(found[stage].survives for stage in ("L2", "L3", "L4"))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_place_that_a_norm_undoes_is_listed_as_lost():
    torch.manual_seed(0)
    model, x = FAMILIES["timm swin"][0]()
    torch.nn.init.normal_(model.patch_embed.proj.weight, std=10.0)
    found = {site.module: site for site in cg.sites(model, x)}
    assert not found["layers.3"].survives and found["norm"].survives and found["norm"].stage == "L4"


def test_a_network_without_stages_has_sites_all_the_same():
    found = cg.sites(Dense(), images(8))
    assert [(site.stage, site.module, site.grid, site.channels) for site in found] == [
        (None, "body", (8, 8), 8)
    ]


def test_the_command_prints_every_name_in_full(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    given = ("--arguments", "in_chans=1", "--image_size", "28")
    status, out, err = command("sites", "resnet10_small", *given)
    assert status == 0 and "\N{HORIZONTAL ELLIPSIS}" not in out, out + err
    assert all(word in out for word in ("layer1", "layer2", "layer3", "layer4", "survives"))
    status, _, err = command("sites", "no_such_network")
    assert status in (1, 2) and "no_such_network" in err
