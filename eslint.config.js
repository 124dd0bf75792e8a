import js from "@eslint/js";
import globals from "globals";

const HTML = "nothing of the page may become HTML by itself; make elements";

export default [
  { ignores: ["mlxgen/server/page/vendor/", ".venv/", "node_modules/"] },
  js.configs.recommended,
  {
    files: ["mlxgen/server/page/*.js"],
    languageOptions: { globals: globals.browser },
    rules: {
      "no-restricted-properties": ["error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML"].map((property) => ({ property, message: HTML }))],
      "no-restricted-syntax": ["error", { selector: "Property[key.name='dangerouslySetInnerHTML']", message: HTML }],
      "no-eval": "error",
      "no-implied-eval": "error",
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "error",
      "no-shadow": "error",
    },
  },
  { files: ["tests/page/*.mjs", "scripts/*.js", "eslint.config.js"], languageOptions: { globals: globals.node } },
];
