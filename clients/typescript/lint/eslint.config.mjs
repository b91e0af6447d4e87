/** The rules for clients/typescript. It is run from target/clients/typescript, where the client's packages are. */

import js from "@eslint/js";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["build/", "dist/", "node_modules/", "**/*.mjs"] },
  js.configs.recommended,
  ...tseslint.configs.recommendedTypeChecked,
  {
    files: ["**/*.ts"],
    languageOptions: { parserOptions: { project: "./tsconfig.test.json", tsconfigRootDir: process.cwd() } },
    rules: {
      // TypeScript finds these, and knows the leading underscore.
      "@typescript-eslint/no-unused-vars": "off",
      // The libraries' clients are classes with methods that are called on them.
      "@typescript-eslint/unbound-method": "off",
      // What an error is made of is passed on as it came.
      "@typescript-eslint/prefer-promise-reject-errors": "off",
      "@typescript-eslint/only-throw-error": "off",
      // A policy, a number or a key in an error text.
      "@typescript-eslint/restrict-template-expressions": "off",
      eqeqeq: "error",
    },
  },
  {
    files: ["test/**/*.ts"],
    rules: {
      // Doubles of clients answer without waiting.
      "@typescript-eslint/require-await": "off",
      // The test runner waits for what it is told.
      "@typescript-eslint/no-floating-promises": "off",
      "@typescript-eslint/no-unsafe-assignment": "off",
      "@typescript-eslint/no-unsafe-member-access": "off",
      "@typescript-eslint/no-unsafe-call": "off",
      "@typescript-eslint/no-unsafe-return": "off",
    },
  },
);
