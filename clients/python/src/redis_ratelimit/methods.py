"""Makes the limiters' methods of the functions of calls.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def like(method: Any, make: Callable[..., Any], name: str) -> None:
    """Gives a method the name, the arguments and the description of the function that it was made of."""
    method.__name__ = name
    method.__qualname__ = f"Limiter.{name}"
    method.__doc__ = make.__doc__
    signature = inspect.signature(make)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    # The method answers what the call reads.
    answers = str(signature.return_annotation).removeprefix("Call[").removesuffix("]")
    method.__signature__ = signature.replace(
        parameters=[itself, *signature.parameters.values()], return_annotation=answers
    )
