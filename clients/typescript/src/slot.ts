/** Slots of keys in a cluster. */

import type { Key } from "./command.js";

const SLOTS = 16_384;

/** Returns the CRC16 (XMODEM). */
function crc16(bytes: Uint8Array): number {
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit += 1) crc = ((crc << 1) ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
  }
  return crc;
}

/** Returns the slot of a key. In a key with a hash tag, such as `{user:1}:day`, only the tag counts. */
export function slotOf(key: Key): number {
  const bytes = Buffer.from(key as string);
  const open = bytes.indexOf("{");
  const close = open < 0 ? -1 : bytes.indexOf("}", open + 1);
  return crc16(close > open + 1 ? bytes.subarray(open + 1, close) : bytes) % SLOTS;
}
