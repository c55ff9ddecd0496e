// The list of runs, filtered by state, agent and text.

import { base, button, chip, el, fetchJson, fill, link, put, statusView } from "./dom.js";
import { ago, className, count, many, money, oneLine, seconds, short, stateOf, stateWords, when } from "./text.js";

const STATES = [["", "all"], ["running", "running"], ["waiting", "waiting"], ["done", "finished"], ["failed", "failed"], ["stopped", "stopped"]];
const PAGE = 50;

export function runsPage(main, site) {
  document.title = "Runs · acorn";
  const params = new URLSearchParams(location.search);
  const query = { status: params.get("status") ?? "", agent: params.get("agent") ?? "", q: params.get("q") ?? "" };
  const chosen = [];
  let runs = [], before = null, loads = 0, searched = 0, isLong = false, loading = null;

  const search = el("input", { type: "search", placeholder: "Search", "aria-label": "Search runs", is: { value: query.q } });
  const agents = el("select", { "aria-label": "Agent" });
  const states = el("div", { class: "segments", role: "radiogroup", "aria-label": "State" }, STATES.map(([value, label]) => el("label", {}, el("input", { type: "radio", name: "state", is: { checked: value === query.status }, on: { change: () => set({ status: value }) } }), el("span", {}, label))));
  const list = el("ul", { class: "run-list" });
  const state = el("p", { class: "quiet", role: "status" });
  const more = button("Older runs", () => startLoading(true));
  more.hidden = true;
  const compare = link("Compare", "/compare", { class: "button primary" });
  const choice = el("div", { class: "actions choice", hidden: true }, el("span", { role: "status" }), compare);
  const known = new Set(query.agent ? [query.agent] : []);
  drawAgents();

  fill(main, el("div", { class: "runs" },
    el("div", { class: "runs-head" }, el("h1", {}, "Runs"), chip(site.store, "mono"), el("div", { class: "filters" }, states, agents, search)),
    state, list, el("div", { class: "actions" }, more), choice));

  let typing;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => set({ q: search.value }), 250);
  });
  agents.addEventListener("change", () => set({ agent: agents.value }));

  function set(change) {
    Object.assign(query, change);
    const shown = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
    history.replaceState(null, "", `${location.pathname}${shown.size ? `?${shown}` : ""}`);
    isLong = false;
    startLoading();
  }

  /** Loads the list again, also while it is being loaded. */
  function startLoading(further = false) {
    const mine = loading = load(further).finally(() => {
      if (loading === mine) loading = null;
    });
    return mine;
  }

  function drawAgents() {
    fill(agents, el("option", { value: "" }, "all agents"), [...known].sort().map((each) => el("option", { value: each, is: { selected: each === query.agent } }, each)));
    agents.hidden = known.size < 2;
  }

  /** Loads the first or the next page. A search continues until the page is full. */
  async function load(further = false) {
    const mine = ++loads;
    const previous = JSON.stringify(runs);
    const params = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
    const earlier = further ? runs : [];
    let loaded = [], from = further ? before : null;
    if (!further) searched = 0;
    do {
      if (from) params.set("before", from);
      const page = await fetchJson(`/api/runs?${params}`);
      if (mine !== loads) return;
      if (page.error) {
        state.textContent = page.error;
        return;
      }
      loaded = [...loaded, ...page.runs];
      from = page.before;
      searched += page.searched;
      runs = [...earlier, ...loaded];
      if (from && query.q) state.textContent = `Searching … ${count(searched)} runs searched, ${count(runs.length)} found`;
      for (const each of page.runs) if (each.agent) known.add(className(each.agent));
      if (query.q && page.runs.length) draw();
    } while (from && query.q && loaded.length < PAGE);
    before = from;
    isLong ||= further;
    more.hidden = !before;
    if (agents.options.length !== known.size + 1) drawAgents();
    if (previous !== JSON.stringify(runs) || !list.childNodes.length) draw();
    state.textContent = describe();
  }

  function describe() {
    const isFiltered = query.status || query.agent;
    const howTo = site.agent ? "" : " `acorn run agent.py --store FILE` stores one.";
    if (!query.q) return runs.length ? "" : isFiltered ? "No run matches." : `No runs yet.${howTo}`;
    const total = `${count(searched)}${before ? " newest" : ""} ${isFiltered ? "matching " : ""}${searched === 1 ? "run" : "runs"}`;
    return `${count(runs.length)} of the ${total} contain “${query.q}” in inputs, messages, calls or results.`;
  }

  function draw() {
    const at = document.activeElement?.closest?.(".run-line")?.getAttribute("href");
    fill(list, runs.map((each) => el("li", { class: "run-item" }, box(each), line(each))));
    list.hidden = !runs.length;
    if (at) [...list.querySelectorAll(".run-line")].find((each) => each.getAttribute("href") === at)?.focus();
  }

  /** Chooses a run to compare. A third choice replaces the first. */
  function box(run) {
    const checkbox = el("input", { type: "checkbox", "aria-label": `Choose ${oneLine(run.input, 60) || short(run.id)} to compare`, is: { checked: chosen.includes(run.id) } });
    checkbox.addEventListener("change", () => {
      if (checkbox.checked) chosen.push(run.id);
      else chosen.splice(chosen.indexOf(run.id), 1);
      if (chosen.length > 2) chosen.shift();
      for (const [at, each] of list.querySelectorAll("input").entries()) each.checked = chosen.includes(runs[at].id);
      choice.hidden = !chosen.length;
      choice.firstChild.textContent = chosen.length === 2 ? "Two runs chosen" : "Choose another run to compare";
      const [a, b] = chosen.map(encodeURIComponent);
      compare.href = `${base}/compare?a=${a}${b ? `&b=${b}` : ""}`;
    });
    return checkbox;
  }

  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input:not([type=checkbox]), select, textarea") || event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === "Escape") event.target.blur?.();
      return;
    }
    if (event.key === "/") {
      event.preventDefault();
      search.focus();
    }
    if (event.key === "c") document.activeElement?.closest?.(".run-item")?.querySelector("input").click();
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const lines = [...list.querySelectorAll(".run-line")];
    const next = lines.indexOf(document.activeElement) + step;
    lines[Math.min(lines.length - 1, Math.max(0, next))]?.focus();
  });

  setInterval(() => {
    // Do not interrupt a slow store.
    if (!document.hidden && !isLong && !query.q && !loading) startLoading();
  }, 2000);
  return startLoading();
}

function line(run) {
  const tokens = run.usage ? run.usage.input_tokens + run.usage.output_tokens : 0;
  const isActive = ["running", "queued"].includes(run.status);
  const result = run.error && run.status !== "stopped" ? el("span", { class: "gist-out bad" }, oneLine(run.error)) : el("span", { class: "gist-out" }, oneLine(run.output) || [className(run.agent), run.model].filter(Boolean).join(" · "));
  const row = link([
    statusView(stateOf(run), stateWords(stateOf(run))),
    el("span", { class: "gist" }, el("span", { class: "gist-in" }, oneLine(run.input) || short(run.id)), result),
    el("span", { class: "figure is-less" }, many(run.steps ?? 0, "step")),
    el("span", { class: "figure is-less", title: `${count(tokens)} tokens` }, money(run.cost) || `${count(tokens)} tk`),
    el("span", { class: "figure" }, !isActive && seconds(run.seconds)),  // An active run has only the time of its last step.
    el("span", { class: "figure", title: run.started && when(run.started) }, run.started && ago(run.started)),
  ], `/runs/${encodeURIComponent(run.id)}`, { class: "run-line" });
  put(row, el("span", { class: "sr" }, ` ${className(run.agent)}`));
  return row;
}
