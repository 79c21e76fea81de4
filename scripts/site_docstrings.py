"""Docstrings for the site: the few roles of Sphinx that they use become Markdown before
mkdocstrings reads them.

Docstrings are written for people who read source: ``:math:`` and ``.. math::`` for formulas,
``:class:`` for names.
"""

import re

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?([^`<]+?)`")
_INLINE = re.compile(r":math:`([^`]+)`")
_BLOCK = re.compile(
    r"^([ \t]*)\.\. math::[ \t]*(.*(?:\n(?:\1[ \t]+\S.*|[ \t]*(?=\n\1[ \t]+\S)))*)", re.MULTILINE
)
_DOCTEST = re.compile(
    r"^([ \t]*)>>> .*(?:\n\1[ \t]*\S.*)*", re.MULTILINE
)  # up to the next empty line


def as_markdown(text):
    r"""The docstring with formulas between dollar signs, names as code; examples as they stand.

    >>> as_markdown("The law :math:`p` of :class:`~chaosgate.field.Law`.")
    'The law $p$ of `Law`.'
    >>> as_markdown("So\n\n.. math:: a = b\n\nholds.")
    'So\n\n$$\na = b\n$$\n\nholds.'
    """
    text = _BLOCK.sub(_block, text)
    text = _INLINE.sub(lambda match: f"${' '.join(match[1].split())}$", text)
    text = _DOCTEST.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)
    return _ROLE.sub(lambda match: f"`{match[1].strip('~').rpartition('.')[2]}`", text)


def _block(match):
    lines = [line.strip() for line in match[2].splitlines() if line.strip()]
    return "\n".join([f"{match[1]}$$", *(match[1] + line for line in lines), f"{match[1]}$$"])


class PlainDocstrings(griffe.Extension):
    """Applied to every object while its source is read."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
