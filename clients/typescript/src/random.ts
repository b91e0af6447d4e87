/** Random numbers and names, in Node and in browsers. */

/** Returns random numbers of 32 bits. */
export function randomNumbers(count: number): number[] {
  const numbers = new Uint32Array(count);
  // Node 18 has no global `crypto`.
  const { crypto } = globalThis as { crypto?: Crypto };
  if (crypto === undefined) return Array.from(numbers, () => Math.floor(Math.random() * 2 ** 32));
  return [...crypto.getRandomValues(numbers)];
}

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/** Returns 16 random characters, 96 bits. A longer id would take more memory on the server. */
export const randomName = (): string =>
  randomNumbers(16)
    .map((number) => LETTERS[number % 64])
    .join("");
