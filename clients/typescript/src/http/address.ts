/** The address of a client, for keys. */

import { checkOptions, integer, quote } from "../check.js";

/** A request of Node, Express, Fastify or Nest, or one of the Fetch API. */
export interface RequestWithAddress {
  /** The connection. A request of the Fetch API has none. */
  readonly socket?:
    | {
        /** The address that the connection comes from. */
        readonly remoteAddress?: string | undefined;
      }
    | undefined;
  /** The headers, with names in lower case or as those of the Fetch API. */
  readonly headers: Pick<Headers, "get"> | Record<string, unknown>;
}

/** Options of clientAddress. */
export interface AddressOptions {
  /**
   * The number of proxies in front of the program, each of which adds to X-Forwarded-For where its request came from.
   * Default 0: the header is ignored, because a client can write anything in it.
   */
  proxies?: number | undefined;
  /**
   * The length of the network that an IPv6 address is shortened to. Default 64: a client of IPv6 usually has a whole /64. Some
   * providers assign a /56 or a /48. 128 keeps the address.
   */
  ipv6Prefix?: number | undefined;
  /** The header X-Forwarded-For, if the first argument is an address. */
  forwardedFor?: string | null | undefined;
}

/** An address as proxies write it: perhaps with a port, in brackets, or with the zone of a link-local address. */
const HOP = /^(?:([\d.]+)(?::\d+)?|\[([\da-f.]*:[\da-f:.]*)(?:%[^\]]*)?\](?::\d+)?|([\da-f.]*:[\da-f:.]*)(?:%.*)?)$/i;

/**
 * Returns the address of a client as a part of a key; of an IPv6 address only the network, such as 2001:db8:1:2::/64, because
 * a client could send each request from another address of it. An IPv4 address that is mapped to IPv6 is returned as IPv4.
 *
 * `from` is the request, or the address that the connection comes from (undefined on a Unix socket, and for a request of the
 * Fetch API). Whatever a client wrote in X-Forwarded-For stands before what the proxies added, and is ignored. If the header
 * has no address in its place, the nearest proxy that has one counts as the client. Without any address the result is empty,
 * so that all such clients share a key.
 *
 *     app.use(rateLimit((request) => limiter.throttle(`web:${clientAddress(request, { proxies: 1 })}`, RATE)));
 */
export function clientAddress(from: RequestWithAddress | string | undefined, options: AddressOptions = {}): string {
  checkOptions("clientAddress", options, ["proxies", "ipv6Prefix", "forwardedFor"]);
  const proxies = Number(integer("proxies", options.proxies ?? 0));
  const prefix = Number(integer("ipv6Prefix", options.ipv6Prefix ?? 64));
  if (proxies < 0) throw new RangeError(`proxies must be at least 0, not ${proxies}`);
  if (prefix < 1 || prefix > 128) throw new RangeError(`ipv6Prefix must be from 1 to 128, not ${prefix}`);
  const isRequest = typeof from === "object" && from !== null;
  if (!isRequest && from !== undefined && typeof from !== "string") {
    throw new TypeError(`clientAddress takes a request or an address, not ${quote(from)}`);
  }
  const peer = isRequest ? from.socket?.remoteAddress : from;
  const header = isRequest ? forwardedFor(from.headers) : options.forwardedFor;
  const hops = (header ?? "").split(",").map((hop) => hop.trim());
  const trusted = [...hops.filter(Boolean), peer ?? ""].slice(-proxies - 1);
  for (const hop of trusted) {
    const part = keyPart(hop, prefix);
    if (part !== undefined) return part;
  }
  return "";
}

function forwardedFor(headers: RequestWithAddress["headers"]): string {
  const name = "x-forwarded-for";
  if (typeof headers.get === "function") return (headers as Headers).get(name) ?? "";
  return String((headers as Record<string, string | string[]>)[name] ?? "");
}

/** Returns the key of an address; undefined if it is none. */
function keyPart(hop: string, prefix: number): string | undefined {
  const [, ipv4, bracketed, bare] = HOP.exec(hop) ?? [];
  if (ipv4 !== undefined) return hostOf(ipv4) === ipv4 ? ipv4 : undefined;
  const network = hostOf(`[${bracketed ?? bare ?? ""}]`);
  if (network === undefined) return undefined;
  const [left = [], right = []] = network
    .slice(1, -1)
    .split("::")
    .map((part) => part.split(":").filter(Boolean));
  const zeros = Array<string>(8 - left.length - right.length).fill("0");
  const groups = [...left, ...zeros, ...right].map((group) => parseInt(group, 16));
  const [high = 0, low = 0] = groups.slice(6);
  if (groups.slice(0, 6).join() === "0,0,0,0,0,65535") return [high >> 8, high & 255, low >> 8, low & 255].join(".");
  const kept = groups.map((group, at) => group & (0xffff << Math.min(Math.max(16 * (at + 1) - prefix, 0), 16)));
  const shortest = hostOf(`[${kept.map((group) => group.toString(16)).join(":")}]`)?.slice(1, -1);
  return prefix === 128 ? shortest : `${shortest}/${prefix}`;
}

/** Returns an address in its shortest form, an IPv6 address in brackets; undefined if it is no address. */
function hostOf(address: string): string | undefined {
  try {
    return new URL(`http://${address}`).hostname;
  } catch {
    return undefined;
  }
}
