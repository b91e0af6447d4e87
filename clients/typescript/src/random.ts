/** Random numbers, wherever the program runs. */

/** 32 random bits each. */
export function randomNumbers(count: number): number[] {
  const numbers = new Uint32Array(count);
  // Node 18 has no global one.
  const { crypto } = globalThis as { crypto?: Crypto };
  if (crypto === undefined) return Array.from(numbers, () => Math.floor(Math.random() * 2 ** 32));
  return [...crypto.getRandomValues(numbers)];
}

/** 24 random letters and digits. */
export const randomName = (): string =>
  randomNumbers(3)
    .map((number) => number.toString(16).padStart(8, "0"))
    .join("");
