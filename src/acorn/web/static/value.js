// Views of any value: text, lists, records as tables, and colored JSON.

import { copyButton, el, put } from "./dom.js";
import { fromJson, isRecord, unrounded, words } from "./text.js";

const MAX_TEXT = 4000;
const MAX_ITEMS = 200;

export function valueView(source, depth = 0) {
  const value = unrounded(source);
  if (value === null || value === undefined) return el("span", { class: "none" }, "none");
  if (value !== source) return el("span", { class: "scalar" }, value);
  if (typeof value === "string") return textView(value);
  if (typeof value !== "object") return el("span", { class: "scalar" }, String(value));
  if (depth > 4) return jsonView(value);
  if (Array.isArray(value)) return listView(value, depth);
  const names = Object.keys(value);
  if (!names.length) return el("span", { class: "none" }, "empty");
  const list = el("dl", { class: "record" });
  for (const name of names.slice(0, MAX_ITEMS)) put(list, el("dt", {}, words(name)), el("dd", {}, valueView(value[name], depth + 1)));
  return list;
}

function listView(value, depth) {
  if (!value.length) return el("span", { class: "none" }, "empty list");
  const shown = value.slice(0, MAX_ITEMS);
  const more = value.length > MAX_ITEMS && el("p", { class: "quiet" }, `and ${value.length - MAX_ITEMS} more`);
  const names = [...new Set(shown.flatMap((each) => (isRecord(each) ? Object.keys(each) : [])))];
  const isFlat = (each) => isRecord(each) && Object.values(each).every((item) => item === null || typeof unrounded(item) !== "object");
  if (shown.every(isFlat) && names.length && names.length <= 6) {
    const head = el("tr", {}, names.map((name) => el("th", { scope: "col" }, words(name))));
    const rows = shown.map((each) => el("tr", {}, names.map((name) => el("td", {}, valueView(each[name], depth + 1)))));
    return el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "table" }, el("table", { class: "values" }, el("thead", {}, head), el("tbody", {}, rows)), more);
  }
  return el("div", {}, el("ul", { class: "values" }, shown.map((each) => el("li", {}, valueView(each, depth + 1)))), more);
}

/** Displays text. A very long text is cut and has a button. */
export function textView(text, look = "said") {
  const node = el("div", { class: look }, text.slice(0, MAX_TEXT));
  if (text.length > MAX_TEXT) {
    const more = el("button", { type: "button", class: "button bare small" }, `… ${text.length - MAX_TEXT} more characters`);
    more.addEventListener("click", () => {
      node.textContent = text;
    });
    node.append(more);
  }
  return node;
}

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;

export function jsonView(value) {
  const text = JSON.stringify(value, null, 2) ?? "";
  const code = el("code");
  let end = 0;
  const shown = text.slice(0, 60000);
  for (const match of shown.matchAll(TOKEN)) {
    if (match.index > end) code.append(shown.slice(end, match.index));
    const look = match[1] ? (match[2] ? "name" : "text") : /^[tfn]/.test(match[0]) ? "word" : "number";
    code.append(el("span", { class: `j-${look}` }, match[1] ?? match[0]));
    if (match[2]) code.append(match[2]);
    end = match.index + match[0].length;
  }
  code.append(shown.slice(end));
  if (text.length > shown.length) code.append("\n…");
  return withCopy(el("pre", { class: "json", tabindex: 0 }, code), () => text);
}

export function preView(text) {
  return withCopy(el("pre", { tabindex: 0 }, text.slice(0, 200000)), () => text);
}

function withCopy(node, text) {
  return el("div", { class: "boxed" }, node, copyButton(text));
}

/** Displays text that may be JSON. */
export function textOrJsonView(text) {
  if (typeof text !== "string") return jsonView(text);
  if (/^\s*[[{]/.test(text) && text.length < 200000) {
    try {
      return jsonView(fromJson(text));
    } catch {
      return preView(text);
    }
  }
  return preView(text);
}
