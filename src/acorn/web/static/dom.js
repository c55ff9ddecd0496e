// Creates all elements, from text and attributes, never from markup.

import { fromJson } from "./text.js";

export const base = document.querySelector('meta[name="acorn-base"]').content;

/** The data of a run that was saved as an HTML file, or null. */
export const savedRun = fromJson(document.getElementById("saved-run")?.textContent ?? "null");

const SVG = "http://www.w3.org/2000/svg";
const PATHS = {
  check: "M3 8.500l3.200 3.200L13 4.800",
  cross: "M4 4l8 8M12 4l-8 8",
  branch: "M5 3v10M5 10c0-3 6-2 6-5.500M11 4.500V3.500M3.500 13h3M3.500 3h3M9.500 3h3",
  tool: "M10.500 2.500a3.200 3.200 0 00-3 4.400L2.800 11.600l1.600 1.600 4.700-4.700a3.200 3.200 0 004.300-3.700l-1.900 1.900-1.800-.4-.4-1.800z",
  person: "M8 8a2.600 2.600 0 100-5.200A2.600 2.600 0 008 8zM3 13.500c.4-2.700 2.400-4 5-4s4.600 1.300 5 4",
  moon: "M12.800 9.600A5.300 5.300 0 016.400 3.200 5.300 5.300 0 1012.800 9.600z",
  sun: "M8 5.200a2.800 2.800 0 110 5.600 2.800 2.800 0 010-5.600zM8 1.500v1.300M8 13.200v1.300M1.500 8h1.300M13.200 8h1.300M3.400 3.400l.9.9M11.700 11.700l.9.9M12.600 3.400l-.9.9M4.300 11.700l-.9.9",
  right: "M6 3.500L10.500 8 6 12.500",
  plus: "M8 3v10M3 8h10",
  bin: "M3 4.500h10M6.500 4.500V3h3v1.500M4.500 4.500l.6 8.500h5.800l.6-8.500",
  copy: "M6 6h7v7H6zM3 10V3h7",
  save: "M8 2.500v7.500M4.800 7L8 10.200 11.200 7M3 13.500h10",
  play: "M5 3.200v9.600L12.500 8z",
  stop: "M4 4h8v8H4z",
  again: "M13 8a5 5 0 11-1.600-3.700M13 2.500v2.300h-2.300",
  talk: "M3 3.500h10v7H7.500L4.500 13v-2.500H3z",
  keys: "M2 4.500h12v7H2zM4.500 7h.1M7 7h.1M9.500 7h.1M11.500 7h.1M5 9.300h6",
  sides: "M3 3h4v10H3zM9 3h4v10H9z",
  code: "M6 4.500L2.500 8 6 11.500M10 4.500L13.500 8 10 11.500",
  list: "M3 4.500h10M3 8h10M3 11.500h7",
  warn: "M8 2.800l5.800 10.400H2.200zM8 6.500v3M8 11.400v.1",
  think: "M5.500 10.500a3.800 3.800 0 115 0v1.500h-5zM6.500 14h3",
};

/** Creates an element with attributes. `on` contains listeners, and `is` contains properties. */
export function el(tag, attrs = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "is") Object.assign(node, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  put(node, ...children);
  return node;
}

/** Appends texts and elements, and skips missing values. */
export function put(node, ...children) {
  for (const child of children.flat(3)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** Replaces the children of an element. */
export function fill(node, ...children) {
  node.replaceChildren();
  return put(node, ...children);
}

/** Loads a stylesheet. */
export function loadStyles(name) {
  return new Promise((resolve) => document.head.append(el("link", { rel: "stylesheet", href: `${base}/static/${name}`, on: { load: resolve, error: resolve } })));
}

export function icon(name, label) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "icon");
  if (label) {
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
  } else svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

export function button(text, act, { look = "", picture, title, label, ...attrs } = {}) {
  const on = act ? { click: act } : {};
  return el("button", { type: "button", class: `button ${look}`, title, "aria-label": label, on, ...attrs }, picture && icon(picture), text && el("span", {}, text));
}

export function link(content, path, attrs = {}) {
  return el("a", { href: base + path, ...attrs }, content);
}

/** Displays the state of a run in a new or existing element. */
export function statusView(state, text, node = el("span")) {
  node.className = `status is-${state}`;
  return fill(node, el("span", { class: "dot" }), text);
}

export function chip(text, look = "", picture) {
  return el("span", { class: `chip ${look}` }, picture && icon(picture), text);
}

export function copyButton(text, label = "Copy", caption = "") {
  return button(caption, async () => {
    try {
      await navigator.clipboard.writeText(text());
      notify("Copied");
    } catch {
      notify("The browser does not allow copying");
    }
  }, { look: caption ? "" : "bare small", picture: "copy", label, title: label });
}

let toast;
/** Shows a short message, also to screen readers. */
export function notify(text) {
  if (!toast) {
    toast = el("div", { class: "toast", role: "status", "aria-live": "polite" });
    document.body.append(toast);
  }
  toast.textContent = text;
  toast.classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => toast.classList.remove("shown"), 2200);
}

/** Sends a request and returns JSON. After a failure, the JSON contains `error`. */
export async function fetchJson(path, { method = "GET", body, signal } = {}) {
  if (savedRun) return fromFile(path);
  const options = { method, signal, credentials: "same-origin" };
  if (method !== "GET") {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body ?? {});
  }
  let response;
  try {
    response = await fetch(base + path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return { error: "The server does not respond. It may have been stopped.", status: 0 };
  }
  let data;
  try {
    data = fromJson(await response.text());
  } catch {
    data = { error: `The server returned status ${response.status}.` };
  }
  return response.ok ? data : { ...data, error: data.error ?? "The request failed.", status: response.status };
}

function fromFile(path) {
  const [address, query] = path.split("?");
  const params = new URLSearchParams(query);
  const row = Number(params.get("row"));
  const endpoint = address.split("/").at(-1);
  if (endpoint === "view") return savedRun.view;
  if (endpoint === "details") return savedRun.details[row];
  if (endpoint === "find") return { rows: savedRun.details.filter((each) => JSON.stringify([each.entries, each.results]).toLowerCase().includes(params.get("q"))).map((each) => each.row) };
  const sent = savedRun.sent[row];
  if (!sent) return { error: "This row is not a model request." };
  let turn = sent, messages = sent.messages;
  for (let keep = sent.keep; keep > 0; keep = Math.min(keep, turn.keep)) {
    turn = savedRun.sent[turn.before];
    messages = [...turn.messages.slice(0, Math.max(0, keep - turn.keep)), ...messages];
  }
  return { ...sent, messages };
}

/** Reads an event stream, and pauses while the page is hidden. */
export function follow(path, onMessage, onError) {
  let source, last, over = false;
  const open = () => {
    if (over || document.hidden || source) return;
    const separator = path.includes("?") ? "&" : "?";
    source = new EventSource(base + path + (last ? `${separator}from=${encodeURIComponent(last)}` : ""));
    source.onmessage = (message) => {
      last = message.lastEventId;
      onMessage(fromJson(message.data));
    };
    source.onerror = () => onError?.();
  };
  const close = () => {
    source?.close();
    source = undefined;
  };
  const onVisibility = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", onVisibility);
  open();
  return () => {
    over = true;
    close();
    document.removeEventListener("visibilitychange", onVisibility);
  };
}

/** Returns a row of tabs that supports the arrow keys. */
export function tabs(list, onChoose) {
  const nodes = new Map();
  const choose = (which, focus) => {
    for (const [name, tab] of nodes) {
      tab.setAttribute("aria-selected", String(name === which));
      tab.tabIndex = name === which ? 0 : -1;
      if (name === which && focus) tab.focus();
    }
  };
  const node = el("div", { class: "tabs", role: "tablist" });
  for (const [name, label] of list) {
    const tab = el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `pane-${name}` }, label);
    tab.addEventListener("click", () => {
      choose(name);
      onChoose(name);
    });
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      const names = list.map(([each]) => each);
      const next = names[(names.indexOf(name) + step + names.length) % names.length];
      choose(next, true);
      onChoose(next);
    });
    nodes.set(name, tab);
    node.append(tab);
  }
  choose(list[0][0]);
  return { node, choose };
}

