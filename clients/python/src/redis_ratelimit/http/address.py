"""The address of a client, for keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

from .._internal.words import whole

_V6 = r"([0-9a-fA-F.]*:[0-9a-fA-F:.]*)(?:%[^]]*)?"
#: An address as proxies write it: perhaps with a port, in brackets, or with the zone of a link-local address.
_HOP = re.compile(rf"([0-9.]+)(?::[0-9]+)?|\[{_V6}\](?::[0-9]+)?|{_V6}")


def client_address(
    peer: str | None, forwarded_for: str | None = None, *, proxies: int = 0, ipv6_prefix: int = 64
) -> str:
    """Returns the address of a client as a part of a key; of an IPv6 address only the network, such as 2001:db8:1:2::/64.

    A client of IPv6 usually has a whole /64, and could send each request from another address of it. `ipv6_prefix` is the
    length of the network: 128 for the address, 56 or 48 for the networks that some providers assign. An IPv4 address that is
    mapped to IPv6 is returned as IPv4.

    `peer` is the address that the connection comes from, or None if it has none, as on a Unix socket. `forwarded_for` is
    the header X-Forwarded-For. `proxies` is the number of proxies in front of the program, each of which adds to the header
    where its request came from. What stands before that in the header is whatever the client wrote, and is ignored. If the
    header has no address in that place, the nearest proxy that has one counts as the client. Without any address the result
    is empty, so that all such clients share a key.
    """
    if whole("proxies", proxies) < 0:
        raise ValueError(f"proxies must be at least 0, not {proxies}")
    if not 1 <= whole("ipv6_prefix", ipv6_prefix) <= 128:
        raise ValueError(f"ipv6_prefix must be from 1 to 128, not {ipv6_prefix}")
    hops = [hop for each in (forwarded_for or "").split(",") if (hop := each.strip())]
    for hop in [*hops, peer or ""][-proxies - 1 :]:
        if found := _key_part(hop, ipv6_prefix):
            return found
    return ""


def address_in(environ: Mapping[str, Any], proxies: int, ipv6_prefix: int) -> str:
    """Returns the address of the client in a WSGI environment, or in the META of a Django request."""
    forwarded_for = environ.get("HTTP_X_FORWARDED_FOR")
    return client_address(environ.get("REMOTE_ADDR"), forwarded_for, proxies=proxies, ipv6_prefix=ipv6_prefix)


def _key_part(hop: str, ipv6_prefix: int) -> str | None:
    found = _HOP.fullmatch(hop)
    if found is None:
        return None
    try:
        address = ip_address(found[1] or found[2] or found[3])
    except ValueError:
        return None
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, ipv6_prefix), strict=False)).removesuffix("/128")
