//! The address of a client.

use std::net::{IpAddr, Ipv6Addr};

/// Returns the address of a client as a part of a key; of an IPv6 address only the network, such as `2001:db8:1:2::/64`.
///
/// A client of IPv6 usually has a whole /64, and could send each request from another address of it. `ipv6_prefix` is the
/// length of the network: 64, 128 for the address, or 56 or 48 for the networks that some providers assign. An IPv4 address
/// that is mapped to IPv6 is returned as IPv4.
///
/// `peer` is the address that the connection comes from, `None` if it has none, as on a Unix socket. `forwarded_for` are the
/// values of `X-Forwarded-For`, as text or as they are in a `HeaderMap`. `proxies` is the number of proxies in front of the
/// program, each of which adds to the header where its request came from. What stands before that in the header is whatever
/// the client wrote, and is ignored. If the header has no address in that place, the nearest proxy that has one counts as
/// the client. Without any address the result is empty, so that all such clients share a key.
///
/// ```
/// use redis_ratelimit_client::http::client_address;
/// use std::net::{IpAddr, Ipv6Addr};
///
/// let proxy = IpAddr::V6(Ipv6Addr::LOCALHOST);
/// let sent = ["192.0.2.66", "192.0.2.67, 2001:db8:1:2::7"];
/// assert_eq!(client_address(Some(proxy), sent, 1, 64), "2001:db8:1:2::/64");
/// assert_eq!(client_address(Some(proxy), sent, 0, 128), "::1");
///
/// // In axum, `request.extensions().get::<ConnectInfo<SocketAddr>>()` has the peer.
/// let request = http::Request::builder().header("x-forwarded-for", sent[1]).body(())?;
/// let sent = request.headers().get_all("x-forwarded-for");
/// assert_eq!(client_address(Some(proxy), sent, 1, 64), "2001:db8:1:2::/64");
/// # Ok::<(), http::Error>(())
/// ```
pub fn client_address(
    peer: Option<IpAddr>,
    forwarded_for: impl IntoIterator<Item = impl AsRef<[u8]>>,
    proxies: usize,
    ipv6_prefix: u8,
) -> String {
    let mut hops = Vec::new();
    for value in forwarded_for {
        let texts = value.as_ref().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        hops.extend(texts.filter(|hop| !hop.is_empty()).map(parse_hop));
    }
    let trusted = hops.get(hops.len().saturating_sub(proxies)..).unwrap_or_default();
    let found = trusted.iter().find_map(|hop| *hop).or(peer);
    match found.map(|address| address.to_canonical()) {
        None => String::new(),
        Some(IpAddr::V6(address)) if ipv6_prefix < 128 => {
            let mask = !u128::MAX.checked_shr(ipv6_prefix.into()).unwrap_or_default();
            format!("{}/{ipv6_prefix}", Ipv6Addr::from(u128::from(address) & mask))
        }
        Some(address) => address.to_string(),
    }
}

/// Reads an address as proxies write it: perhaps with a port, in brackets, or with the zone of a link-local address.
fn parse_hop(hop: &[u8]) -> Option<IpAddr> {
    let hop = std::str::from_utf8(hop).ok()?;
    let parse_v6 = |text: &str| {
        let (address, _zone) = text.split_once('%').unwrap_or((text, ""));
        address.parse().ok().map(IpAddr::V6)
    };
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((address, rest)) = hop.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let is_whole = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        return parse_v6(address).filter(|_| is_whole);
    }
    let address = match hop.split_once(':') {
        Some((address, port)) if is_port(port) => address,
        _ => hop,
    };
    address.parse().ok().map(IpAddr::V4).or_else(|| parse_v6(hop))
}
