"""The address of the project in the package, if HOMEPAGE says it."""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        home = os.environ.get("HOMEPAGE")
        metadata["urls"] = {"Homepage": home} if home else {}
