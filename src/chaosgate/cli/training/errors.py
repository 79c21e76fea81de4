"""What jsonargparse, Lightning and this library say about a wrong value, in one sentence that a user can act on.

A wrong value of an optional argument is reported as a failed union, with the types tried, every attempt's complaint and
the whole object that was given. One line of it matters: the complaint of the class, or the types that were expected.
"""

import re
import shlex
from collections.abc import Sequence

from chaosgate.run.provenance import versions

_UNKNOWN = re.compile(
    r"(?:unrecognized arguments?: (?:--)?|key \"?'?|option '|does not accept option '|nested key ')([\w.]+)",
    re.IGNORECASE,
)

_HEADINGS = ("Does not validate against any of the", "Subtypes:", "Errors:", "Given value type:", "Problem with given")
_TYPES = {
    "NoneType": "null",
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a string",
    "dict": "a mapping",
    "list": "a list",
    "Sequence": "a list",
    "Tensor": "a tensor",
}
_IN_PLAIN_WORDS = (
    (r"Expected a path but .* either not accessible or invalid", ""),  # every value could have been a file
    (r".*module '([\w.]+)' has no attribute '(\w+)'.*", r"\1 has no class '\2'."),
    (
        r"Expected a dot import path string: (.*)",
        r"'\1' is not a class; give its full path, such as torch.optim.Adam.",
    ),
    (
        r"Expected an instantiatable class, but .* ?is abstract\.?",
        "the class is abstract: one of its methods is missing (a Gate needs perturb, an Operator matrix).",
    ),
    (r"Option '([\w.]+)' is not accepted", r"the class it is given to has no argument '\1'."),
    (
        r"the following arguments are required: \w+\.data",
        "no images are named; add a file such as -c data/fashion_mnist ('chaosgate configs' lists them).",
    ),
    (
        r"the following arguments are required: ([\w, ]+)",
        r"required, and not given: \1. Arguments of the data are set as --data.NAME, those of a gate as "
        "--noise.gate.init_args.NAME.",
    ),
)
_DENIED = re.compile(r"Importing '([^']+)' is not allowed, denied by .*")
_IN_WORKER = re.compile(r"\ACaught \w+ in DataLoader worker process .*\n[\w.]+(Error|Exception): ", re.DOTALL)
_LONG = 80  # characters of a given value that are still worth repeating


def plain_words(text: str) -> str:
    r"""The message without types, unions and namespaces.

    >>> plain_words('''Parser key "gamma":
    ...   Does not validate against any of the Union subtypes
    ...   Subtypes: [<class 'float'>, <class 'NoneType'>]
    ...   Errors:
    ...     - Expected a <class 'float'>
    ...     - Expected a <class 'NoneType'>
    ...   Given value type: <class 'str'>
    ...   Given value: strong''')
    'gamma: expected a number or null; got strong.'
    """
    keys: list[str] = []
    said: list[str] = []
    expected: list[str] = []
    given = ""
    for line in (_without_namespaces(text)).splitlines():
        line = line.strip().removeprefix("- ").strip()
        if match := re.match(r"(?:Validation failed: )?Parser key \"([^\"]+)\":\s*(.*)", line):
            keys.append(match.group(1))
            line = match.group(2)
        if match := _DENIED.search(line):
            said = [f"{match.group(1)} may not be named in a configuration; --allow MODULE allows a module you trust."]
            break
        if line.startswith("Subclass types expect one of"):
            break  # a list of everything that could have been written instead
        for pattern, words in _IN_PLAIN_WORDS:
            line = re.sub(f"^{pattern}$", words, line)
        if not line or line.startswith((*_HEADINGS, "usage:")):
            continue
        if match := re.match(r"Given value: (.*)", line):
            given = given or match.group(1)
        elif match := re.fullmatch(r"Expected an? (<class .*?|List.*?|Sequence.*?)(?:\. Got value: (.*))?\.?", line):
            expected.append(_type_name(match.group(1)))
            given = given or (match.group(2) or "")
        else:
            said.append(_named_types(line))
    prefix = f"{'.'.join(dict.fromkeys(keys))}: " if keys else ""
    if said:
        return prefix + " ".join(dict.fromkeys(said))
    got = f"; got {given}" if given and len(given) <= _LONG else ""
    return f"{prefix}expected {' or '.join(dict.fromkeys(expected)) or 'something else'}{got}."


def _type_name(text: str) -> str:
    name = _named_types(text)
    return _TYPES.get(name, "a list" if name.startswith(("List", "Sequence")) else f"a {name}")


def _named_types(text: str) -> str:
    return re.sub(r"<class '(?:[\w.]+\.)?(\w+)'>", r"\1", text)


def _without_namespaces(text: str) -> str:
    """``Namespace(class_path='a.B', init_args=...)`` becomes ``a.B``."""
    while (start := text.find("Namespace(")) >= 0:
        end, depth = start + len("Namespace"), 0
        for end in range(start + len("Namespace"), len(text)):
            depth += (text[end] == "(") - (text[end] == ")")
            if depth == 0:
                break
        inside = re.search(r"class_path='([^']+)'", text[start:end])
        text = text[:start] + (inside.group(1) if inside else "{...}") + text[end + 1 :]
    return text


def one_line(message: str) -> str:
    """The message in plain words, without line breaks."""
    return " ".join(plain_words(message).split())


def one_paragraph(error: BaseException) -> str:
    """The message of an error that a user can correct, without the traceback; also that of a loader's worker."""
    text = _IN_WORKER.sub("", str(error))
    text = one_line(text) if text.strip() else type(error).__name__
    return f"chaosgate: {text}\n(CHAOSGATE_TRACEBACK=1 shows where this was raised.)"


def how_to_report(command: Sequence[str]) -> str:
    """What to do about an error that nobody foresaw."""
    words = shlex.join(["chaosgate", *command[1:]])
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    return (
        "\nchaosgate: unexpected error: this is a bug in chaosgate, or in a library it uses. Please report it "
        "with the form 'Something does not work' where you got chaosgate from, with the traceback above and these "
        f"lines (remove anything private):\n  command   {words}\n  versions  {found}"
    )


def unknown_key(message: str) -> str | None:
    """The key that the parser reports as unknown."""
    match = _UNKNOWN.search(message)
    return None if match is None else match.group(1)
