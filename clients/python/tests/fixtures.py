"""The tables that all clients are tested by, clients/cases.json and clients/headers.json, in this client's terms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from redis_ratelimit import Clause, Rate, Window

FOLDER = Path(__file__).parents[2]
CASES: list[dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text("utf-8"))
HEADERS: list[dict[str, Any]] = json.loads((FOLDER / "headers.json").read_text("utf-8"))


def limit(case: Any) -> Any:
    if isinstance(case, str):
        return case
    if "rate" in case:
        return Rate(*case["rate"])
    amount, period, options = case["window"]
    return Window(amount, period, **options)


def arguments(case: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """What the method takes that the case calls."""
    if "clauses" in case:
        return [[clause(each) for each in case["clauses"]]], {}
    positional = [case["key"]]
    if "limit" in case:
        positional.append(limit(case["limit"]))
    positional += case.get("ids", [])
    if "quantity" in case:
        positional.append(case["quantity"])
    return positional, case.get("options", {})


def clause(case: dict[str, Any]) -> Clause:
    positional, options = arguments(case)
    made: Clause = getattr(Clause, case["clause"])(*positional, **options)
    return made


def differences(found: Any, expected: Any) -> list[str]:
    """Where an answer is not what a case says it means. A case names only the fields that it is about."""
    if isinstance(expected, dict):
        return [
            f"{name}: {each}"
            for name, value in expected.items()
            for each in differences(getattr(found, name), value)
        ]
    if isinstance(expected, list):
        if len(found) != len(expected):
            return [f"{found!r} has not {len(expected)} elements"]
        return [each for pair in zip(found, expected) for each in differences(*pair)]
    right = type(found) is type(expected) and found == expected
    return [] if right else [f"{found!r} is not {expected!r}"]
