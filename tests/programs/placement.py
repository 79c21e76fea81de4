"""Is a gate in the right place? Measured on the network itself, without chaosgate's resolver.

* The batch axis of the tensor follows that of the images (batches of 2 and 3).
* If a detached copy replaces the tensor, no gradient reaches the image: every path crosses it.
* Parameters come after it: it is neither the output nor the class scores.
* A changed patch of the image changes the matching grid position most. This gives layout and grid.
* No later place of the same grid passes these tests with a gate that changes the output, except
  within one layer of it (norms, activations, the 1x1 convolution of a head). No coarser place
  follows L4, and no resolution is skipped.
* A training forward with an attached gate equals one in which this tensor is multiplied by hand.
"""

import copy
import math
import re

import torch
from torch import nn

import chaosgate as cg

STAGES = ("L1", "L2", "L3", "L4")
PATCHES = ((1, 1), (1, 7), (7, 1), (7, 7), (5, 1), (3, 7))  # centers, in eighths of the image
NO_GRID = "it is not a grid in the order of the image"


def pattern(*grid):
    """Positive, mean one, a different value at every site."""
    values = torch.randn(grid, generator=torch.Generator().manual_seed(0)).exp()
    return values / values.mean()


class Pattern(cg.Gate):
    def perturb(self, h, noise):
        return h * pattern(*h.shape[2:])


def patched(image):
    """The image, and copies of it with one changed patch each."""
    copies = image.repeat(len(PATCHES) + 1, 1, 1, 1)
    side, noise = image.shape[-1] // 8, torch.Generator().manual_seed(0)
    for one, (row, column) in zip(copies[1:], PATCHES, strict=True):
        top, left = row * side - side // 2, column * side - side // 2
        change = 3 * torch.randn(side, side, generator=noise)
        one[:, top : top + side, left : left + side] += change
    return copies


@torch.no_grad()
def prepare(model, x, shift=1.0):
    """Random weights with which the structure of a network can be measured.

    Branches that start at zero act, kernels are concentrated at their centers, and statistics of
    BatchNorm are those of the images. ``shift`` moves activations into their linear part, so that
    small changes stay small in deep networks.
    """
    for p in model.parameters():
        if p.abs().max() < 1e-3:
            p.normal_(0.3 if p.numel() == max(p.shape, default=1) else 0, 0.05)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    for m in convolutions:
        rows, columns = m.kernel_size
        if rows % 2 and columns % 2:
            center = m.weight[..., rows // 2, columns // 2].clone()
            m.weight *= 0.03
            m.weight[..., rows // 2, columns // 2] = center
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d)]
    biased = [m for m in convolutions if m.bias is not None]
    for m in biased if 2 * len(biased) > len(convolutions) else norms:
        if m.bias is not None:
            m.bias += shift
    for m in norms:
        m.momentum = 1.0
    model.train()(torch.cat([x, patched(x[:1])]))
    return model.eval().requires_grad_(False)


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    parts = list(value.values()) if isinstance(value, dict) else value
    return [t for part in parts for t in tensors(part)] if isinstance(parts, list | tuple) else []


def forward(model, x):
    output = model(x)
    return torch.cat([t.flatten(1) for t in tensors(getattr(output, "logits", output))], 1)


def features(output):
    return next((t for t in tensors(output) if t.ndim >= 3), None)


def changed(model, name, function, run):
    """Run with the features of a module replaced by a function of them."""

    def hook(module, args, output):
        old, new = features(output), function(features(output))
        if isinstance(output, torch.Tensor):
            return new
        if isinstance(output, dict):
            return type(output)(**{k: new if v is old else v for k, v in output.items()})
        return type(output)(new if v is old else v for v in output)

    handle = model.get_submodule(name).register_forward_hook(hook)
    try:
        return run()
    finally:
        handle.remove()


def layouts(shape):
    """Ways to read a shape as a square grid: (first axis of the sites, leading tokens, side)."""
    if len(shape) == 4:
        return [(a, 0, shape[a]) for a in (2, 1) if shape[a] == shape[a + 1] > 1]
    sides = [(a, math.isqrt(shape[a])) for a in (1, 2)] if len(shape) == 3 else []
    return [(a, shape[a] - s * s, s) for a, s in sides if s > 1]


def multiplied(t, layout):
    """The gate by hand."""
    axis, prefix, side = layout
    gate = pattern(side, side)
    if t.ndim == 3:
        gate = torch.cat([torch.ones(prefix), gate.flatten()])
    return t * (gate if axis == 2 else gate[..., None])


def measured(difference):
    """The layout in which the changed patches of the image are found again, if there is one."""
    for axis, prefix, side in layouts(difference.shape):
        energy = difference.square().sum(1 if axis == 2 else -1).flatten(1)[:, prefix:]
        energy = energy / energy.sum(1, keepdim=True)
        energy = energy - energy.mean(0)  # in deep networks every patch also changes the center
        found = 0
        for one, center in zip(energy, PATCHES, strict=True):
            place = divmod(int(one.argmax()), side)
            error = max(abs((p + 0.5) / side - c / 8) for p, c in zip(place, center, strict=True))
            found += error < 1 / 16 + 0.8 / side
        if found >= len(PATCHES) - 1:
            return axis, prefix, side
    return None


class Network:
    """What the modules of a prepared network return, and which of these tensors could be gated."""

    def __init__(self, model, x):
        self.model, self.x = model, x
        self.calls, self.order, self.layout, self.shapes, self.seen = {}, {}, {}, {}, {}

        def see(name, found):
            self.calls[name] = self.calls.get(name, 0) + 1
            self.order[name], self.seen[name] = len(self.order), found
            if found is not None and len(found) == len(PATCHES) + 1:
                self.layout[name] = measured(found[1:] - found[:1])
                self.shapes[name] = found.shape

        def hook(name):
            return lambda module, args, output: see(name, features(output))

        named = [(name, module) for name, module in model.named_modules() if name]
        hooks = [module.register_forward_hook(hook(name)) for name, module in named]
        with torch.no_grad():
            forward(model, patched(x[:1]))
            for one in hooks:
                one.remove()
            self.output = forward(model, x)
            self.scale = (forward(model, x.flip(0)) - self.output).norm()

    def side(self, name):
        return self.reading(name)[2]

    def reading(self, name):
        """The measured layout; else the first that the shape allows."""
        return self.layout.get(name) or [*layouts(self.shapes.get(name, ())), (0, 0, 0)][0]

    def cut(self, name):
        """Whether every path crosses this place, and whether parameters come after it."""
        images = self.x.clone().requires_grad_()
        detached = lambda t: t.detach().clone()  # noqa: E731
        output = changed(self.model, name, detached, lambda: forward(self.model, images))
        every = not output.requires_grad or not torch.autograd.grad(output.sum(), images)[0].any()
        self.model.requires_grad_(True)
        output = changed(self.model, name, detached, lambda: forward(self.model, self.x))
        self.model.requires_grad_(False)
        return every, output.requires_grad

    @torch.no_grad()
    def effect(self, name):
        """How much a gate by hand changes the output, relative to another image."""
        by_hand = lambda t: multiplied(t, self.reading(name))  # noqa: E731
        gated = changed(self.model, name, by_hand, lambda: forward(self.model, self.x))
        return float((gated - self.output).norm() / self.scale)

    def downsamples(self, name):
        """Whether it is a block with one resolution at its input and one at its output."""
        inside = {self.side(n) for n in self.layout if n == name or n.startswith(f"{name}.")}
        return len(inside - {0}) == 2

    def later(self, name, until):
        """Modules between two places that could be gated, the last one first."""
        weights = {n: getattr(self.model.get_submodule(n), "weight", None) for n in self.order}
        layers = [n for n, w in weights.items() if isinstance(w, torch.Tensor) and w.ndim > 1]
        start, end = self.order[name], self.order.get(until, math.inf)
        for p in sorted(self.order, key=self.order.get, reverse=True):
            between = sum(start < self.order[n] <= self.order[p] for n in layers)
            around = [p[:i] for i, letter in enumerate(p) if letter == "."]
            inside = any(self.side(a) != self.side(p) and self.downsamples(a) for a in around)
            if start < self.order[p] < end and between > 1 and not inside and self.side(p):
                if self.calls[p] == 1 and self.seen[p] is not self.seen[name]:
                    yield p

    def wrong(self, name, following=None, last=True):
        """What is wrong with this place; ``following`` is that of the next stage, if known."""
        if self.calls.get(name, 0) != 1:
            return f"it runs {self.calls.get(name, 0)} times"
        sizes = []
        for batch in (2, 3):
            images = torch.cat([self.x, self.x])[:batch]
            keep = lambda t: sizes.append(len(t)) or t  # noqa: E731
            with torch.no_grad():
                changed(self.model, name, keep, lambda images=images: forward(self.model, images))
        if sizes != [2, 3]:
            return f"its first axis is {sizes} for batches of 2 and 3"
        every, before = self.cut(name)
        if not every:
            return "other paths lead around it"
        if not before:
            return "it is the output or the class scores"
        if not self.layout.get(name):
            return NO_GRID
        until = following and self.side(following)
        for p in self.later(name, following):
            same = self.side(p) == self.side(name) != until
            between = last if until is None else self.side(p) > until
            skipped = between and self.side(p) < self.side(name)
            if (same or skipped) and all(self.cut(p)) and self.effect(p) > 1e-3:
                return f"{'the last of its grid is' if same else 'it skips the coarser'} {p}"
        return ""


def alike(handle, x, name, layout):
    """Whether an attached gate equals the multiplication by hand, in training mode."""

    def run():
        torch.manual_seed(1)  # dropout
        with torch.no_grad():
            return forward(handle.model, x)

    handle.model.train()
    attached = run()
    handle.remove()
    by_hand = changed(handle.model, name, lambda t: multiplied(t, layout), run)
    return torch.allclose(attached, by_hand, 1e-4, 1e-5 * float(by_hand.abs().max()))


def attempt(model, x, place, **example):
    """The module of a gate, or the error of attaching or of the check at the first forward."""
    handle = None
    try:
        handle = cg.attach(model, Pattern(), place, **example)
        torch.manual_seed(1)
        model.train()(x)
        return handle.sites[0].module
    except Exception as error:  # of any library: it is reported
        return error
    finally:
        if handle is not None:
            handle.remove()
        model.eval()


def verdicts(model, x, stages=STAGES, sized=False, shift=1.0):
    """(stage, module, side of its grid, right | refused | WRONG, reason) of a network.

    ``sized``: the network was created for these images, so that its dry run needs no example.
    """
    example = {} if sized else {"example": x}
    network = Network(prepare(copy.deepcopy(model), x, shift), x)
    placed = {stage: attempt(model, x, stage, **example) for stage in stages}
    if any("example=" in str(module) for module in placed.values()):
        example = {"example": x}  # the size that it was created for is not in the model
        placed = {stage: attempt(model, x, stage, **example) for stage in stages}
    for stage, module in placed.items():
        if isinstance(module, Exception):
            verdict, reason, module = "refused", f"{module}", ""
            if not isinstance(placed[stage], ValueError):
                verdict = "WRONG"
            for name in re.findall(r"stages=\['([^']+)'\]", reason):
                if isinstance(attempt(model, x, name), Exception):
                    verdict, reason = "WRONG", f"the suggested {name} does not work: {reason}"
        else:
            later = [placed[s] for s in stages if s > stage and isinstance(placed[s], str)]
            reason = network.wrong(module, later[0] if later else None, stage == "L4")
            with cg.attach(model, Pattern(), stage, check=False, **example) as handle:
                again = handle.sites[0].module
                if not reason and again != module:
                    reason = f"after a training forward it is {again}"
                elif not reason and not alike(handle, x, module, network.layout[module]):
                    reason = "the gate differs from the multiplication by hand"
            verdict = "WRONG" if reason else "right"
        yield stage, module, network.side(module), verdict, " ".join(reason.split())[:400]
