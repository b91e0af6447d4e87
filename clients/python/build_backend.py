"""Builds the package: with its native extension where a Rust compiler can build it, else without it.

With a compiler maturin builds it. Without one, or if the build fails, hatchling makes a wheel of the Python files alone:
everything but MemoryLimiter and local() works, and those say what is missing. PURE=1 asks for that where there is a
compiler.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from importlib import import_module
from typing import Any

MATURIN = "maturin>=1.9.4,<2"
HATCHLING = "hatchling>=1.26,<2"


def _has_compiler() -> bool:
    return os.environ.get("PURE", "") in ("", "0") and shutil.which("cargo") is not None


def _build(hook: str, *arguments: Any) -> str:
    reason = "there is no Rust compiler (cargo)"
    if _has_compiler():
        # A compiler that is too old, without a linker or without a network. maturin exits when cargo fails.
        try:
            return str(getattr(import_module("maturin"), hook)(*arguments))
        except (Exception, SystemExit):
            reason = "cargo could not build it"
    print(f"{reason}: the package is built without its native extension", file=sys.stderr)
    return str(getattr(import_module("hatchling.build"), hook)(*arguments))


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [MATURIN, HATCHLING] if _has_compiler() else [HATCHLING]


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    # What it needs of the repository only cargo can tell.
    return [MATURIN]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    return _build("build_wheel", wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    return _build("build_editable", wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    made: str = import_module("maturin").build_sdist(sdist_directory, config_settings)
    _add_library(os.path.join(sdist_directory, made))
    return made


def _add_library(archive: str) -> None:
    """Adds an empty src/lib.rs: cargo reads no workspace whose root package, the server's module, has no library."""
    with tarfile.open(archive) as old, tarfile.open(f"{archive}.new", "w:gz") as new:
        for member in old:
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
        new.addfile(tarfile.TarInfo(f"{os.path.basename(archive).removesuffix('.tar.gz')}/src/lib.rs"))
    os.replace(f"{archive}.new", archive)
