"""Everything that ``attach`` refuses, in one table: condition, and message with its remedy."""

from typing import Any, NoReturn


class ChaosgateError(Exception):
    """Base of the errors in :data:`PLACEMENT` and :data:`LOOPS`."""


class PlacementError(ChaosgateError, ValueError):
    """A gate cannot be placed as asked."""


class LoopError(ChaosgateError, RuntimeError):
    """The model is run in a way that is outside the contract of ``attach``."""


def refuse(condition: str, **facts: Any) -> NoReturn:
    """Raise the error of a condition, with the facts filled in."""
    kind = PlacementError if condition in PLACEMENT else LoopError
    cause = facts.get("error")
    message = {**PLACEMENT, **LOOPS}[condition].format(**facts)
    raise kind(message) from (cause if isinstance(cause, BaseException) else None)


PLACEMENT = {
    # -- arguments
    "stages once": "stages must name at least one stage or module, each once, e.g. ['L4']; got {stages!r}.",
    "stages twice": "a dict of gates names its stages itself, at least one ({stages}); leave stages out.",
    "layout": "layout is one of {kinds}, or None; got {layout!r}.",
    "grid": "grid is the number of sites along each axis of tokens, e.g. (14, 14); got {grid!r} for layout {layout}.",
    "factor": "set_strength takes a factor from 0 (no noise) to 1 (full strength); got {factor!r}.",
    # -- where
    "no such module": "no stage or module {name!r} in {model}. Stages are {stages}.{nearest} "
    "chaosgate.sites(model) lists all places.",
    "no such stage": "{model} has no stage {stage}: {why}. Name a module; chaosgate.sites(model, batch) "
    "lists those that work.",
    "repeated reductions": "several stages of {model} have the same reduction: {listing}. Name a module, "
    "e.g. stages=[{last!r}].",
    "same module": "{first!r} and {second!r} are the same module ('{module}'). Name it once.",
    "already gated": "'{module}' already has a gate, by {handle!r}. Remove it first (handle.remove(); "
    "chaosgate.Attachment.on(model) finds the handle).",
    "gated twice": "'{module}' returns the tensor that '{inner}' returned, which already has a gate. Name one.",
    "no image": "{model} takes no image. Name modules instead of L1 to L4, or give a batch (example=).",
    "dry run": "the dry run of {model} on images of shape {shape} failed: {error}. Give a batch that the "
    "model takes, attach(..., example=batch), or name modules instead of L1 to L4.",
    "sharded": "the parameters of {model} are sharded (fully_shard). Attach before sharding, or name a module.",
    # -- layouts
    "not one map": "'{name}' returns {type} with {shapes}; a gate needs one map, sequence or volume, or "
    "tokens (B, L, C). Name another module, e.g. one inside it.",
    "windows": "'{name}' returns {maps} maps for {images} inputs, such as windows of them. Name a module "
    "outside of the windows; or give layout= (grid= for tokens) if each is a map of its own.",
    "two readings": "'{name}' returns {shape}, which can be layout='{first}' or layout='{last}'. Give one.",
    "tokens": "'{name}' returns {shape}: {tokens} tokens whose rows and columns are not known. "
    "Give grid=(rows, columns) for tokens, layout='NCL' for a sequence with channels first.",
    "does not fit": "layout={layout!r}, grid={grid} does not fit: '{name}' returns a tensor of shape {shape}.",
    # -- effect
    "no effect": "the gate at {where} does not reach the output: it changes by {change:.1e} of what another "
    "image changes, although the gate injects {energy:.1e} of the features' energy. Cause: {cause}. {advice}",
    "constant": "the gate at {where} changes nothing on this batch: {cause}. Check with trained weights and "
    "real images, or use check=False.",
    # -- Monte Carlo prediction
    "loss": "Monte Carlo prediction averages probabilities; the loss would be that of a single draw. Call the "
    "model without labels, and compute the loss from the averaged log-probabilities (nll_loss).",
    "no logits": "Monte Carlo prediction needs logits (B, K); the model returns {output}. Give class_axis=, e.g. "
    "1 for (B, K, H, W), or return the logits alone or under that name.",
}
"""Refused when a gate is attached or checked."""

LOOPS = {
    "removed": "this attachment was removed from its model; attach the gates again.",
    "frozen": "the gate at '{stage}' did not act: '{module}' is in evaluation mode while the model trains. "
    "Call .train() on '{module}' (its batch norms may stay frozen), name another module, or remove the gate.",
    "replaced": "the gate at '{stage}' did not act: '{module}' was replaced by another module. Replace modules "
    "first, then attach.",
    "not called": "the gate at '{stage}' did not act: '{module}' was not called. Activation checkpointing may "
    "run its blocks directly: name the last one{inner}. If the model was compiled and run before the gate was "
    "attached: attach first; torch.compiler.reset() drops the old code.",
    "shared hooks": "this {model} shares its hooks with the gated one (torch.nn.DataParallel, copy.copy). Use "
    "DistributedDataParallel, or copy.deepcopy and attach a gate to the copy.",
    "compiled": "the layout at '{module}' is not known yet, and compiled code has no values to find it. Call "
    "handle.check(batch) before the compiled model runs.",
    "which forward": "activation checkpointing runs '{module}' again in the backward pass, and it is not certain "
    "for which forward: {found}. Call backward() after each forward, put the views into one batch, use "
    "use_reentrant=False and call the whole model, or switch checkpointing off.",
    "averages": "Monte Carlo prediction averages calls of the whole model in evaluation mode; here it runs "
    "{how}. Call model.eval() and model(...), or leave monte_carlo().",
}
"""Refused while the model runs."""
