/** What a limiter reports to operators, by the module node:diagnostics_channel of the runtime. */

/** The messages by the names of their channels, which begin with "redis-ratelimit-client:". */
export interface Events {
  /** The breaker of a server opened, or closed because the server answered. */
  breaker: { server: string; isOpen: boolean; error: unknown };
  /** A call was decided without Redis. */
  unreachable: { command: string; key: string | Buffer | undefined; error: unknown };
  /** The leases of these limits ended before their reservation was settled. `ids` has those of all its limits. */
  lapsed: { names: string[]; ids: Record<string, string> };
  /** A reservation or a local limit could not be settled. What it holds ends with its lease. */
  unsettled: { key: string | Buffer | undefined; error: unknown };
}

interface Channel {
  readonly hasSubscribers: boolean;
  publish(message: unknown): void;
}

const { process } = globalThis as {
  process?: { getBuiltinModule?(name: string): { channel(name: string): Channel } | undefined };
};
// Not imported, as browsers have no such module, and a bundler would look for it.
const diagnostics = process?.getBuiltinModule?.("node:diagnostics_channel");
const channels = new Map<string, Channel | undefined>();

/** Publishes a message, which is made only if somebody subscribed to the channel. */
export function publish<Name extends keyof Events>(name: Name, makeMessage: () => Events[Name]): void {
  if (!channels.has(name)) channels.set(name, diagnostics?.channel(`redis-ratelimit-client:${name}`));
  const channel = channels.get(name);
  if (channel?.hasSubscribers) channel.publish(makeMessage());
}
