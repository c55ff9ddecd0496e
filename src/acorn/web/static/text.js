// Formatting of numbers, times and JSON.

export function seconds(value) {
  if (value === undefined || value === null) return "";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 59.95) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(Math.round(value) / 60);
  const pair = (large, unit, small, smallUnit) => (small ? `${large} ${unit} ${small} ${smallUnit}` : `${large} ${unit}`);
  if (minutes < 60) return pair(minutes, "min", Math.round(value) % 60, "s");
  return pair(Math.floor(minutes / 60), "h", minutes % 60, "min");
}

export function count(value) {
  return (value ?? 0).toLocaleString("en");
}

export function many(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function money(value) {
  if (value === undefined || value === null) return "";
  if (value === 0) return "$0";
  if (value < 0.01) return `$${value.toPrecision(2)}`;
  return `$${value.toFixed(value < 1 ? 4 : 2).replace(/(\.\d\d)0+$/, "$1")}`;
}

const STATES = { done: "finished", unfinished: "not finished", waiting: "waiting", lost: "no connection" };

/** Returns the state of a run. A single turn that called a tool is unfinished. */
export function stateOf(head) {
  return head.status === "done" && head.stop_reason === "unfinished" ? "unfinished" : head.status;
}

export function stateWords(state) {
  return STATES[state] ?? state;
}

export function ago(iso) {
  const then = Date.parse(iso);
  const past = (Date.now() - then) / 1000;
  if (Number.isNaN(past)) return "";
  if (past < 45) return "just now";
  if (past < 3600) return `${Math.max(1, Math.round(past / 60))} min ago`;
  if (past < 86400) return `${Math.round(past / 3600)} h ago`;
  return new Date(then).toLocaleDateString("en", { year: "numeric", month: "short", day: "numeric" });
}

export function when(iso) {
  const then = new Date(iso);
  return Number.isNaN(then.getTime()) ? "" : then.toLocaleString("en");
}

/** Returns the name of a field in words. */
export function words(name) {
  return String(name).replaceAll("_", " ");
}

export function short(id) {
  return /^[0-9a-f]{32}$/.test(id) ? id.slice(0, 8) : id;
}

export function className(agent) {
  return String(agent ?? "").split(":").pop();
}

export function oneLine(value, most = 160) {
  const text = typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value);
  const flat = text.replace(/\s+/g, " ").trim();
  return flat.length > most ? `${flat.slice(0, most)}…` : flat;
}

/** Parses JSON. Integers that JavaScript would round do not change. */
export function fromJson(text) {
  const keep = (_, value, { source }) => (Number.isInteger(value) && !Number.isSafeInteger(value) ? JSON.rawJSON(source) : value);
  return JSON.parse(text, JSON.rawJSON && /\d{16}/.test(text) ? keep : undefined);
}

/** Returns the source of an integer that would be rounded, or the value. */
export function unrounded(value) {
  return JSON.isRawJSON?.(value) ? value.rawJSON : value;
}

export function isRecord(value) {
  return Boolean(value) && typeof value === "object" && !Array.isArray(value) && !JSON.isRawJSON?.(value);
}

export function parse(text) {
  try {
    return fromJson(text);
  } catch {
    return undefined;
  }
}

/** Returns the problems in a validation document. */
export function problemsIn(text) {
  const unescape = (part) => part.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&quot;", '"').replaceAll("&apos;", "'").replaceAll("&amp;", "&");
  const problems = [];
  const pattern = /<field name="([^"]*)">\s*<expected>([^]*?)<\/expected>\s*<received>([^]*?)<\/received>/g;
  for (const [, path, expected, received] of String(text).matchAll(pattern)) problems.push({ path: unescape(path), expected: unescape(expected), received: unescape(received) });
  return problems;
}

/** Returns one line with the first text of a value, or with its JSON. */
export function summary(value, most = 160) {
  if (isRecord(value)) {
    const items = Object.values(value);
    const text = items.find((item) => typeof item === "string" && item.trim());
    return oneLine(text ?? (items.length === 1 ? items[0] : value), most);
  }
  return oneLine(value, most);
}

/** Returns the value of a record with one field. */
export function unwrap(value) {
  const names = isRecord(value) ? Object.keys(value) : [];
  return names.length === 1 ? value[names[0]] : value;
}
