/** Random numbers, wherever the program runs. */

/** 32 random bits each. */
export function randomNumbers(count: number): number[] {
  const numbers = new Uint32Array(count);
  // Node 18 has no global one.
  const { crypto } = globalThis as { crypto?: Crypto };
  if (crypto === undefined) return Array.from(numbers, () => Math.floor(Math.random() * 2 ** 32));
  return [...crypto.getRandomValues(numbers)];
}

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/** 16 random letters and digits: 96 bits. A longer id takes more memory on a server. */
export const randomName = (): string =>
  randomNumbers(16)
    .map((number) => LETTERS[number % 64])
    .join("");
