#!/usr/bin/env python3
"""Writes the reference of the Python client, docs/python-reference.md, from its docstrings.

    make reference

It needs what scripts/install-clients.sh installs into target/clients/python. A public item without a docstring is an error,
and so is a public module of the client that neither MODULES nor UNDOCUMENTED names. A test of the client checks that the
page is up to date.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, is_typeddict

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "clients" / "python" / "src"
PAGE = ROOT / "docs" / "python-reference.md"
#: The modules that programs import; for a module without __all__, the names to document.
MODULES: dict[str, list[str]] = {
    "redis_ratelimit": [],
    "redis_ratelimit.types": [],
    "redis_ratelimit.asyncio": ["Limiter", "Local", "MemoryLimiter", "Reservation"],
    "redis_ratelimit.asgi": ["RateLimitMiddleware", "client_address"],
    "redis_ratelimit.fastapi": [],
    "redis_ratelimit.flask": [],
    "redis_ratelimit.django": [],
    "redis_ratelimit.limits": [],
}
#: The modules that have no functions for programs to call: docs/litellm.md.
UNDOCUMENTED = {"litellm"}
HEAD = """# Reference of the Python client

Written by `make reference` from the docstrings of [clients/python](../clients/python). How things are used is in
[its README](../clients/python/README.md).
"""


class Undocumented(Exception):
    """A public item has no docstring."""


def text_of(item: Any, name: str) -> str:
    text = inspect.getdoc(item)
    if not text:
        raise Undocumented(f"{name} has no docstring")
    # Arguments become a list.
    head, mark, arguments = text.partition("\nArgs:\n")
    if mark:
        arguments = re.sub(r"^ {4}(?! )([^:]+): ", r"- `\1`: ", arguments, flags=re.MULTILINE)
        text = head + "\n" + re.sub(r"^ {8}", "  ", arguments, flags=re.MULTILINE)
    # Code that is indented, or that stands at the end after a line that ends with a sentence, is a block.
    lines, found, is_code = text.splitlines(), [], False
    for line in lines:
        if line.startswith("    ") and not is_code:
            found.append("```python")
            is_code = True
        elif is_code and line and not line.startswith("    "):
            while not found[-1]:
                found.pop()
            found += ["```", ""]
            is_code = False
        found.append(line[4:] if is_code else line)
    return "\n".join(found + (["```"] if is_code else []))


class Plain(str):
    """An annotation as it stands in the source."""

    def __repr__(self) -> str:
        return str(self)


def annotation_of(annotation: Any) -> Any:
    text = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(text, type) and text is not inspect.Signature.empty and not hasattr(text, "__args__"):
        text = text.__name__
    return Plain(text) if isinstance(text, str) else text


def signature_of(item: Any) -> str:
    signature = inspect.signature(item)
    parameters = [
        each.replace(annotation=annotation_of(each.annotation))
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]
    result = signature.empty if inspect.isclass(item) else annotation_of(signature.return_annotation)
    shown = str(signature.replace(parameters=parameters, return_annotation=result))
    return shown.replace("redis_ratelimit._internal.replies.", "")


def comments_of(cls: type) -> dict[str, str]:
    """The `#:` comments above the fields of a class."""
    lines = inspect.getsource(cls).splitlines()
    found: dict[str, str] = {}
    comment: list[str] = []
    for line in lines:
        stripped = line.strip()
        if stripped.startswith("#: "):
            comment.append(stripped[3:])
        elif comment and (name := re.match(r"(\w+)\s*(:|=)", stripped)):
            found[name[1]] = " ".join(comment)
            comment = []
        else:
            comment = []
    return found


def fields_of(cls: type) -> list[str]:
    names = [field.name for field in fields(cls)] if is_dataclass(cls) else list(getattr(cls, "_fields", ()))
    bases = cls.__mro__
    if is_typeddict(cls):
        names = list(cls.__annotations__)
        # A TypedDict has the fields of its bases, but does not name the bases.
        bases = (cls, *filter(is_typeddict, vars(sys.modules[cls.__module__]).values()))
    comments: dict[str, str] = {}
    for base in reversed(bases):
        if base.__module__.startswith("redis_ratelimit"):
            comments |= comments_of(base)
    own = [name for name in names if not name.startswith("_")]
    return [f"- `{name}`: {comments[name]}" if name in comments else f"- `{name}`" for name in own]


def twin_of(cls: type) -> Any:
    """The synchronous class whose methods a class for asyncio has too; None for any other class."""
    module, name = cls.__module__.removesuffix(".asyncio"), cls.__name__.removeprefix("Async")
    if (module, name) == (cls.__module__, cls.__name__):
        return None
    return getattr(importlib.import_module(module), name)


def members_of(cls: type, name: str) -> list[str]:
    lines: list[str] = []
    twin, same = twin_of(cls), []
    for member, value in with_internal_bases(cls).items():
        if member.startswith("_") or not (callable(value) or isinstance(value, (property, staticmethod))):
            continue
        if not value.__doc__ and any(hasattr(base, member) for base in cls.__mro__[1:] if base in documented_classes()):
            continue
        if value.__doc__ and value.__doc__ == getattr(getattr(twin, member, None), "__doc__", None):
            same.append(value)
            continue
        if isinstance(value, property):
            lines += [f"#### `{name}.{member}`", "", text_of(value, f"{name}.{member}"), ""]
            continue
        function = value.__func__ if isinstance(value, staticmethod) else value
        prefix = "await " if inspect.iscoroutinefunction(function) else ""
        shown = f"{prefix}{name}.{member}{signature_of(function)}"
        lines += [
            f"#### `{name}.{member}`",
            "",
            "```python",
            shown,
            "```",
            "",
            text_of(function, f"{name}.{member}"),
            "",
        ]
    if same:
        plain = [f"`{each.__name__}`" for each in same if callable(each) and not inspect.iscoroutinefunction(each)]
        rest = f", except for {' and '.join(plain)}" if plain else ""
        module = cls.__module__.removesuffix(".asyncio")
        lines += [f"All other methods are those of `{module}.{twin.__name__}`, and are awaited{rest}.", ""]
    return lines


@cache
def aliases() -> dict[str, tuple[str, str]]:
    """The definitions of the aliases of types, by their names, and the `#:` comments above them."""
    found = {}
    for path in (SOURCE / "redis_ratelimit" / "_internal").glob("*.py"):
        pattern = r"((?:^ *#: .*\n)+) *((\w+) = (?:Callable|Literal|Sequence|Union)\[.*\])$"
        for comment, definition, name in re.findall(pattern, path.read_text("utf-8"), re.MULTILINE):
            found[name] = definition, re.sub(r"^ *#: ", "", comment, flags=re.MULTILINE).rstrip()
    return found


def public_names(module: str) -> list[str]:
    names = MODULES[module] or importlib.import_module(module).__all__
    return [name for name in names if not name.startswith("__")]


@cache
def documented_classes() -> set[Any]:
    return {getattr(importlib.import_module(module), name) for module in MODULES for name in public_names(module)}


def with_internal_bases(cls: type) -> dict[str, Any]:
    """The members of a class, and of those of its bases that the page does not tell of."""
    members = dict(vars(cls))
    documented = [base for base in cls.__mro__[1:] if base in documented_classes()]
    for base in cls.__mro__[1:]:
        if base.__module__.startswith("redis_ratelimit") and not any(issubclass(each, base) for each in documented):
            members |= {name: value for name, value in vars(base).items() if name not in members}
    return members


def is_made_by_programs(value: Any) -> bool:
    """Returns False for errors, options, protocols, and what other classes make: clauses, reservations, local limits."""
    if inspect.isclass(value):
        if is_typeddict(value) or issubclass(value, BaseException) or getattr(value, "_is_protocol", False):
            return False
        return not {"core", "_traits"} & {*inspect.signature(value).parameters}
    return callable(value)


def item(module: str, name: str, value: Any) -> list[str]:
    if isinstance(value, str):
        return []
    lines = [f"### `{name}`", ""]
    if name in aliases():
        definition, comment = aliases()[name]
        return [*lines, "```python", definition, "```", "", comment, ""]
    if is_made_by_programs(value):
        lines += ["```python", f"{name}{signature_of(value)}", "```", ""]
    lines += [text_of(value, f"{module}.{name}"), ""]
    if inspect.isclass(value):
        lines += [*fields_of(value), ""] if fields_of(value) else []
        lines += [] if issubclass(value, BaseException) else members_of(value, name)
    return lines


def page() -> str:
    files = {path.stem for path in (SOURCE / "redis_ratelimit").glob("*.py")} - {"__init__"}
    documented = {module.partition(".")[2] for module in MODULES} - {""}
    if wrong := files ^ (documented | UNDOCUMENTED):
        raise Undocumented(f"modules that are not documented, or are missing: {wrong}")
    parts = [HEAD]
    for module in MODULES:
        imported = importlib.import_module(module)
        parts.append(f"## {module}\n")
        parts.append(text_of_module(imported) + "\n")
        for name in public_names(module):
            parts += item(module, name, getattr(imported, name))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def text_of_module(module: Any) -> str:
    """The docstring of a module; after its first paragraph code may stand without an indentation."""
    text = inspect.getdoc(module)
    if not text:
        raise Undocumented(f"{module.__name__} has no docstring")
    found = []
    for paragraph in text.split("\n\n"):
        is_code = False
        try:
            ast.parse(paragraph)
            is_code = bool(re.search(r"[=@(]|^import ", paragraph))
        except SyntaxError:
            # What a decorator stands above, without its body.
            is_code = paragraph.startswith("@")
        found.append(f"```python\n{paragraph}\n```" if is_code else paragraph)
    return "\n\n".join(found).replace("```\n\n```python\n", "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCE))
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
