// Numbers and times in words.

export function seconds(value) {
  if (value === undefined || value === null) return "";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 59.95) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(Math.round(value) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(value) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function count(value) {
  return (value ?? 0).toLocaleString("en");
}

export function many(value, what) {
  return `${count(value)} ${what}${value === 1 ? "" : "s"}`;
}

export function money(value) {
  if (value === undefined || value === null) return "";
  if (value === 0) return "$0";
  if (value < 0.01) return `$${value.toPrecision(2)}`;
  return `$${value.toFixed(value < 1 ? 4 : 2).replace(/(\.\d\d)0+$/, "$1")}`;
}

const STATES = { done: "finished", unfinished: "not finished", waiting: "waits", lost: "the server is gone" };

/** What a run is at; a single turn that called a tool has ended, and has no answer. */
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

/** The name of a field as people read it. */
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

export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** What is wrong with an answer, of the document that the model reads about it. */
export function problemsIn(text) {
  const plain = (part) => part.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&quot;", '"').replaceAll("&apos;", "'").replaceAll("&amp;", "&");
  const found = [];
  const shape = /<field name="([^"]*)">\s*<expected>([^]*?)<\/expected>\s*<received>([^]*?)<\/received>/g;
  for (const [, path, expected, received] of String(text).matchAll(shape)) found.push({ path: plain(path), expected: plain(expected), received: plain(received) });
  return found;
}

/** A value in a line: the text that it is, or the first one in it; else JSON. */
export function gist(value, most = 160) {
  if (value && typeof value === "object" && !Array.isArray(value)) {
    const items = Object.values(value);
    const text = items.find((each) => typeof each === "string" && each.trim());
    return oneLine(text ?? (items.length === 1 ? items[0] : value), most);
  }
  return oneLine(value, most);
}

/** The one value of a record that has only one. */
export function single(value) {
  const names = value && typeof value === "object" && !Array.isArray(value) ? Object.keys(value) : [];
  return names.length === 1 ? value[names[0]] : value;
}
