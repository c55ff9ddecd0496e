// The list of runs: what there is, found by state, agent and text.

import { ask, base, button, chip, el, fill, link, put, statusView } from "./dom.js";
import { ago, className, count, many, money, oneLine, seconds, short, stateOf, stateWords, when } from "./text.js";

const STATES = [["", "all"], ["running", "running"], ["waiting", "waiting"], ["done", "finished"], ["failed", "failed"], ["stopped", "stopped"]];
const PAGE = 50;

export function runsPage(main, site) {
  document.title = "Runs · acorn";
  const wanted = new URLSearchParams(location.search);
  const query = { status: wanted.get("status") ?? "", agent: wanted.get("agent") ?? "", q: wanted.get("q") ?? "" };
  const chosen = [];
  let runs = [], before = null, asked = 0, looked = 0, isLong = false, loading = null;

  const search = el("input", { type: "search", placeholder: "Search", "aria-label": "Search runs", is: { value: query.q } });
  const agents = el("select", { "aria-label": "Agent" });
  const states = el("div", { class: "segments", role: "radiogroup", "aria-label": "State" }, STATES.map(([value, words]) => el("label", {}, el("input", { type: "radio", name: "state", is: { checked: value === query.status }, on: { change: () => set({ status: value }) } }), el("span", {}, words))));
  const list = el("ul", { class: "run-list" });
  const state = el("p", { class: "quiet", role: "status" });
  const more = button("Older ones", () => begin(true));
  more.hidden = true;
  const beside = link("Compare", "/compare", { class: "button primary" });
  const choice = el("div", { class: "actions choice", hidden: true }, el("span", { role: "status" }), beside);
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
    begin();
  }

  /** Loads anew, whatever is under way. */
  function begin(further = false) {
    const mine = loading = load(further).finally(() => {
      if (loading === mine) loading = null;
    });
    return mine;
  }

  function drawAgents() {
    fill(agents, el("option", { value: "" }, "every agent"), [...known].sort().map((each) => el("option", { value: each, is: { selected: each === query.agent } }, each)));
    agents.hidden = known.size < 2;
  }

  /** A page of runs, or a further one; a text is looked for until a page is full, however many runs there are. */
  async function load(further = false) {
    const mine = ++asked;
    const drawn = JSON.stringify(runs);
    const wants = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
    const earlier = further ? runs : [];
    let made = [], from = further ? before : null;
    if (!further) looked = 0;
    do {
      if (from) wants.set("before", from);
      const found = await ask(`/api/runs?${wants}`);
      if (mine !== asked) return;
      if (found.error) {
        state.textContent = found.error;
        return;
      }
      made = [...made, ...found.runs];
      from = found.before;
      looked += found.searched;
      runs = [...earlier, ...made];
      if (from && query.q) state.textContent = `Looking … ${count(looked)} runs so far, ${count(runs.length)} found`;
      for (const each of found.runs) if (each.agent) known.add(className(each.agent));
      if (query.q && found.runs.length) draw();
    } while (from && query.q && made.length < PAGE);
    before = from;
    isLong ||= further;
    more.hidden = !before;
    if (agents.options.length !== known.size + 1) drawAgents();
    if (drawn !== JSON.stringify(runs) || !list.childNodes.length) draw();
    state.textContent = told();
  }

  function told() {
    const isNarrow = query.status || query.agent;
    const howTo = site.agent ? "" : " `acorn run agent.py --store FILE` keeps one.";
    if (!query.q) return runs.length ? "" : isNarrow ? "Nothing fits." : `There are no runs yet.${howTo}`;
    const which = `${count(looked)}${before ? " newest" : ""} ${isNarrow ? "runs that fit" : looked === 1 ? "run" : "runs"}`;
    return `${count(runs.length)} of the ${which} say “${query.q}” in what went in, was said, called or returned.`;
  }

  function draw() {
    const at = document.activeElement?.closest?.(".run-line")?.getAttribute("href");
    fill(list, runs.map((each) => el("li", { class: "run-item" }, box(each), line(each))));
    list.hidden = !runs.length;
    if (at) [...list.querySelectorAll(".run-line")].find((each) => each.getAttribute("href") === at)?.focus();
  }

  /** Two are chosen to be compared; a third takes the place of the first. */
  function box(run) {
    const made = el("input", { type: "checkbox", "aria-label": `Choose ${oneLine(run.input, 60) || short(run.id)} to compare`, is: { checked: chosen.includes(run.id) } });
    made.addEventListener("change", () => {
      if (made.checked) chosen.push(run.id);
      else chosen.splice(chosen.indexOf(run.id), 1);
      if (chosen.length > 2) chosen.shift();
      for (const [at, each] of list.querySelectorAll("input").entries()) each.checked = chosen.includes(runs[at].id);
      choice.hidden = !chosen.length;
      choice.firstChild.textContent = chosen.length === 2 ? "Two runs are chosen" : "Choose another to compare";
      const [a, b] = chosen.map(encodeURIComponent);
      beside.href = `${base}/compare?a=${a}${b ? `&b=${b}` : ""}`;
    });
    return made;
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
    // A store that takes longer than this would never be heard to the end.
    if (!document.hidden && !isLong && !query.q && !loading) begin();
  }, 2000);
  return begin();
}

function line(run) {
  const tokens = run.usage ? run.usage.input_tokens + run.usage.output_tokens : 0;
  const goesOn = ["running", "queued"].includes(run.status);
  const said = run.error && run.status !== "stopped" ? el("span", { class: "gist-out bad" }, oneLine(run.error)) : el("span", { class: "gist-out" }, oneLine(run.output) || [className(run.agent), run.model].filter(Boolean).join(" · "));
  const made = link([
    statusView(stateOf(run), stateWords(stateOf(run))),
    el("span", { class: "gist" }, el("span", { class: "gist-in" }, oneLine(run.input) || short(run.id)), said),
    el("span", { class: "figure is-less" }, many(run.steps ?? 0, "step")),
    el("span", { class: "figure is-less", title: `${count(tokens)} tokens` }, money(run.cost) || `${count(tokens)} tk`),
    el("span", { class: "figure" }, !goesOn && seconds(run.seconds)),  // what it took up to its last step says nothing
    el("span", { class: "figure", title: run.started && when(run.started) }, run.started && ago(run.started)),
  ], `/runs/${encodeURIComponent(run.id)}`, { class: "run-line" });
  put(made, el("span", { class: "sr" }, ` ${className(run.agent)}`));
  return made;
}
