"""Everything that ``attach`` refuses, in one table: the condition, the kind of error, the message with its remedy."""

from typing import Any, NoReturn


class ChaosgateError(Exception):
    """Base of the errors in :data:`REFUSALS`."""


class PlacementError(ChaosgateError, ValueError):
    """A gate cannot be placed as asked."""


class LoopError(ChaosgateError, RuntimeError):
    """The model is run in a way that is outside the contract of ``attach``."""


def refuse(condition: str, **facts: Any) -> NoReturn:
    """Raise the error of a condition, with the facts filled in."""
    kind, message = REFUSALS[condition]
    cause = facts.get("error")
    raise kind(message.format(**facts)) from (cause if isinstance(cause, BaseException) else None)


REFUSALS: dict[str, tuple[type[ChaosgateError], str]] = {
    # -- arguments
    "stages once": (
        PlacementError,
        "stages must name at least one stage or module, each once, e.g. ['L4']; got {stages!r}.",
    ),
    "stages twice": (
        PlacementError,
        "a dict of gates names its stages itself, at least one ({stages}); leave stages out.",
    ),
    "unknown layout": (PlacementError, "layout is one of {kinds}, or None; got {layout!r}."),
    "unknown grid": (PlacementError, "grid is the number of sites along each axis, e.g. (14, 14); got {grid!r}."),
    "grid of a map": (PlacementError, "grid is for tokens (layout='NLC'); the shape of {layout} features has it."),
    "bad factor": (
        PlacementError,
        "set_strength takes a factor from 0 (no noise) to 1 (full strength); got {factor!r}. For stronger noise make a "
        "stronger gate.",
    ),
    # -- where
    "no such module": (
        PlacementError,
        "no stage or module {name!r} in {model}. Stages are {stages}; modules go by their path.{nearest} "
        "chaosgate.sites(model) lists the places of this network.",
    ),
    "no such stage": (
        PlacementError,
        "{model} has no stage {stage}: {why}. Stages that were found: {others}. Name one of these, or a module of "
        "chaosgate.sites(model).",
    ),
    "no stages": (
        PlacementError,
        "{model} declares no stages, and the dry run proves none: {why}. Name modules instead of L1 to L4; "
        "chaosgate.sites(model, batch) lists them.",
    ),
    "repeated reductions": (
        PlacementError,
        "several stages of {model} have the same reduction: {listing}. Name a module instead, e.g. stages=[{last!r}].",
    ),
    "same place": (PlacementError, "{first!r} and {second!r} are the same module ('{module}'). Name it once."),
    "already gated": (
        PlacementError,
        "'{module}' already has a gate, by {handle!r}. Remove it first (handle.remove(); "
        "chaosgate.Attachment.on(model) finds the handle).",
    ),
    "tensor gated twice": (
        PlacementError,
        "'{module}' returns the tensor that '{inner}' returned, which already has a gate. Name one of the two.",
    ),
    "no image": (
        PlacementError,
        "{model} takes no image, so that L1 to L4 cannot be found. Name modules, or give a batch with example=.",
    ),
    "dry run failed": (
        PlacementError,
        "the dry run of {model} on images of shape {shape} failed: {error}. Give a batch that the model takes, "
        "attach(..., example=batch), or name modules instead of L1 to L4.",
    ),
    "sharded": (
        PlacementError,
        "the parameters of {model} are sharded (fully_shard), and a dry run would leave them gathered. Attach before "
        "sharding, or name a module and set check=False.",
    ),
    # -- layouts
    "not one map": (
        PlacementError,
        "module '{name}' returns {type} with {shapes}; a gate needs one map (B, C, H, W) or (B, H, W, C), one sequence "
        "or volume, or tokens (B, L, C). Name another module, e.g. one inside it.",
    ),
    "windows": (
        PlacementError,
        "'{name}' returns {shape}: {maps} maps for {images} inputs, such as windows of them. Name a module outside of "
        "the windows; or give layout= (grid= for tokens) if each is a map of its own.",
    ),
    "two readings": (
        PlacementError,
        "'{name}' returns {shape}, which can be layout='{first}' or layout='{last}'. Give one of them.",
    ),
    "unknown tokens": (
        PlacementError,
        "'{name}' returns {shape}: {tokens} tokens whose rows and columns are not known for an image of {image}, or a "
        "sequence. Give grid=(rows, columns) for tokens, layout='NCL' for a sequence with channels first.",
    ),
    "layout does not fit": (
        PlacementError,
        "layout='{layout}' does not fit: '{name}' returns a tensor of shape {shape}.",
    ),
    "grid does not fit": (PlacementError, "'{name}' returns {tokens} tokens; a grid of {grid} has more sites."),
    # -- effect
    "no effect": (
        PlacementError,
        "the gate at {where} does not reach the output: it changes by {change:.1e} of what another image changes, "
        "although the gate injects {energy:.1e} of the features' energy. Cause: {cause}. {advice}",
    ),
    "constant gate": (
        PlacementError,
        "the gate at {where} changes nothing on this batch: {cause}. Check with trained weights and real images, or use "
        "check=False.",
    ),
    # -- loops
    "removed": (LoopError, "this attachment was removed from its model; attach the gates again."),
    "frozen": (
        LoopError,
        "the gate at '{stage}' did not act: '{module}' is in evaluation mode while the model trains, and a gate follows "
        "the mode of its module. Call .train() on '{module}' (its batch norms may stay frozen), name another module, or "
        "remove the gate.",
    ),
    "replaced": (
        LoopError,
        "the gate at '{stage}' did not act: '{module}' was replaced by another module after the gate was attached. "
        "Replace modules first, then attach (handle.remove(), then attach again).",
    ),
    "not called": (LoopError, "the gate at '{stage}' did not act: '{module}' was not called{why}.{remedy}"),
    "shared hooks": (
        LoopError,
        "this {model} shares its hooks with the gated one (torch.nn.DataParallel and copy.copy do that). Use "
        "DistributedDataParallel, or copy.deepcopy and attach a gate to the copy.",
    ),
    "two threads": (
        LoopError,
        "a gated model runs in two threads at once. Give each thread a copy.deepcopy of the model with a gate of its "
        "own, or let one forward end before the next begins.",
    ),
    "compiled too early": (
        LoopError,
        "the layout at '{module}' is not known yet, and compiled code has no values to find it. Call "
        "handle.check(batch) before the compiled model runs.",
    ),
    "which forward": (
        LoopError,
        "activation checkpointing runs '{module}' again in the backward pass, and it is not certain for which forward: "
        "{found}. Call backward() after each forward and keep no output of an earlier one, put the views into one "
        "batch, use checkpointing with use_reentrant=False and call the whole model, or switch checkpointing off.",
    ),
    "Monte Carlo": (
        LoopError,
        "Monte Carlo prediction averages calls of the whole model in evaluation mode; here it runs {how}. Call "
        "model.eval() and model(...), or leave monte_carlo().",
    ),
    "Monte Carlo loss": (
        PlacementError,
        "Monte Carlo prediction averages probabilities; the loss that the model returns would be that of a single draw. "
        "Call it without labels, and compute the loss from the averages (nll_loss: they are log-probabilities).",
    ),
    "Monte Carlo output": (
        PlacementError,
        "Monte Carlo prediction needs logits (B, K); the model returns {output}. Give class_axis=, e.g. 1 for "
        "(B, K, H, W), or wrap the model so that it returns the logits, alone or under that name.",
    ),
}
"""Condition, kind of error, message."""
