// What the server's figures say of the engine. Nothing here touches the page.

/** Prometheus' text as a list of {name, labels, value}. */
function figuresOf(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const [, name, labels = "", value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    if (!name) continue;
    const pairs = [...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)];
    found.push({ name, value: Number(value), labels: Object.fromEntries(pairs.map(([, key, given]) => [key, unescaped(given)])) });
  }
  return found;
}

const unescaped = (text) => text.replace(/\\(.)/g, (_, sign) => (sign === "n" ? "\n" : sign));

/** The engine's state: bytes, sequences, and what was done so far. */
export function engineOf(text) {
  const figures = figuresOf(text);
  const all = (name) => figures.filter((figure) => figure.name === `mlxgen_${name}`);
  const value = (name) => all(name)[0]?.value ?? 0;
  const accepted = new Map(all("accepted_draft_tokens_total").map((one) => [one.labels.drafter, one.value]));
  return {
    device: all("device_info")[0]?.labels.name ?? "",
    bytes: {
      weights: value("weights_bytes"), kv: value("kv_bytes"), prefixes: value("prefix_cache_bytes"),
      caches: value("cache_limit_bytes"), held: value("held_bytes"), device: value("device_limit_bytes"),
      disk: value("disk_bytes"), diskLimit: value("disk_limit_bytes"),
    },
    generating: value("batch_size"), reading: value("prefilling"), waiting: value("queue_size"),
    tokens: value("completion_tokens_total"), prompt: value("prompt_tokens_total"), cached: value("cached_tokens_total"),
    drafts: all("drafted_tokens_total").map(({ labels, value: drafted }) => ({
      drafter: labels.drafter, drafted, accepted: accepted.get(labels.drafter) ?? 0,
    })).filter(({ drafted }) => drafted > 0),
  };
}

/** Bytes as people read them, in the powers of ten that the server's log has. */
export function inBytes(count) {
  const [size, unit] = /** @type {[number, string]} */ ( [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([least]) => count >= least) ?? [1, "bytes"]);
  const value = count / size;
  return `${unit === "bytes" || value >= 100 ? Math.round(value) : value.toFixed(value >= 10 ? 1 : 2)} ${unit}`;
}
