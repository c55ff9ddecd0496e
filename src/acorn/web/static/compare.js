// The comparison of two runs: figures, inputs, answers and steps. Equal steps are folded.

import { button, chip, el, fetchJson, fill, link, put, statusView } from "./dom.js";
import { ago, className, count, isRecord, many, money, oneLine, seconds, short, stateOf, stateWords, summary } from "./text.js";
import { valueView } from "./value.js";

const MAX_ROWS = 400;
const address = (id) => `/runs/${encodeURIComponent(id)}`;

export async function comparePage(main) {
  const params = new URLSearchParams(location.search);
  const [a, b] = [params.get("a") ?? "", params.get("b") ?? ""];
  document.title = "Compare · acorn";
  if (!b) return choose(main, a);
  const comparison = await fetchJson(`/api/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`);
  if (comparison.error) return fill(main, el("div", { class: "wait" }, el("p", { class: "wrong" }, comparison.error), link("All runs", "/runs/")));
  const heads = [comparison.a.head, comparison.b.head];
  const swap = link("Swap sides", `/compare?a=${encodeURIComponent(b)}&b=${encodeURIComponent(a)}`, { class: "button small" });
  return fill(main, el("div", { class: "runs compare" }, el("div", { class: "runs-head" }, el("h1", {}, "Comparison"), swap),
    el("div", { class: "sides", role: "group", "aria-label": "Runs" }, heads.map(headView)), figures(heads),
    fields("Input", heads.map((head) => head.input)), fields("Answer", heads.map((head) => head.output ?? head.error)), steps(comparison)));
}

/** Lists the runs that can be compared. The original run of a fork is the first. */
async function choose(main, a) {
  const [first, list] = await Promise.all([fetchJson(`/api/runs/${encodeURIComponent(a)}/view`), fetchJson("/api/runs")]);
  const wrong = first.error ?? list.error;
  if (wrong) return fill(main, el("div", { class: "wait" }, el("p", { class: "wrong" }, wrong), link("All runs", "/runs/")));
  const origin = first.head.forked_from?.run;
  const rank = (run) => (run.id === origin ? 0 : run.agent === first.head.agent ? 1 : 2);
  const others = list.runs.filter((run) => run.id !== a).sort((one, other) => rank(one) - rank(other));
  const line = (run) => el("li", {}, link([
    statusView(stateOf(run), stateWords(stateOf(run))),
    el("span", { class: "gist" }, el("span", { class: "gist-in" }, oneLine(run.input) || short(run.id)), el("span", { class: "gist-out" }, run.id === origin ? "origin of this fork" : className(run.agent))),
    el("span", { class: "figure" }, run.started && ago(run.started)),
  ], `/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(run.id)}`, { class: "run-line is-short" }));
  fill(main, el("div", { class: "runs compare" }, el("h1", {}, `${summary(first.head.input, 80) || short(a)} compared with …`),
    others.length ? el("ul", { class: "run-list" }, others.map(line)) : el("p", { class: "quiet" }, "No other run exists.")));
  main.querySelector(".run-line")?.focus();
}

function headView(head) {
  const fork = head.forked_from && chip(`fork before step ${head.forked_from.before}`, "", "branch");
  return el("div", {}, el("h2", {}, link(summary(head.input, 120) || short(head.id), address(head.id))),
    el("div", { class: "chips" }, statusView(stateOf(head), stateWords(stateOf(head))), chip(short(head.id), "mono"), fork));
}

function figures(heads) {
  const tokens = (head) => (head.usage?.input_tokens ?? 0) + (head.usage?.output_tokens ?? 0);
  const lines = [
    ["agent", (head) => className(head.agent)], ["model", (head) => head.model ?? ""],
    ["time", (head) => head.seconds, seconds], ["steps", (head) => head.steps, count], ["tokens", tokens, count], ["cost", (head) => head.cost, money],
  ];
  const rows = lines.map(([name, of, format = String]) => {
    const [one, other] = heads.map(of);
    const change = typeof one === "number" && typeof other === "number" && one > 0 && other !== one ? ` ${other > one ? "+" : "−"}${Math.round(Math.abs(other / one - 1) * 100)} %` : "";
    return el("tr", { class: one === other ? "" : "is-other" }, el("th", { scope: "row" }, name), [one, other].map((value, at) => el("td", {}, value === undefined || value === null ? "–" : format(value), at === 1 && change && el("span", { class: "quiet" }, change))));
  });
  return table("Figures", rows);
}

function table(title, rows) {
  const id = `of-${title.toLowerCase()}`;
  return el("section", { class: "card", "aria-labelledby": id }, el("h2", { id }, title), el("table", { class: "versus" }, el("colgroup", {}, el("col"), el("col"), el("col")), el("thead", { class: "sr" }, el("tr", {}, ["figure", "first run", "second run"].map((label) => el("th", { scope: "col" }, label)))), el("tbody", {}, rows)));
}

/** Compares two values field by field and marks the differences. */
function fields(title, values) {
  const names = values.every(isRecord) ? [...new Set(values.flatMap((value) => Object.keys(value)))] : [null];
  const rows = names.map((name) => {
    const both = values.map((value) => (name === null ? value : value[name]));
    const isSame = JSON.stringify(both[0]) === JSON.stringify(both[1]);
    return el("tr", { class: isSame ? "" : "is-other" }, el("th", { scope: "row" }, name ?? title.toLowerCase()),
      isSame ? el("td", { colspan: 2 }, valueView(both[0])) : both.map((value) => el("td", {}, value === undefined ? el("span", { class: "none" }, "missing") : valueView(value))));
  });
  return table(title, rows);
}

function steps({ a, b, pairs }) {
  const list = el("ol", { class: "pairs" });
  const folded = (same) => {
    const open = button(`${many(same.length, "equal row")}`, () => item.replaceWith(...same.slice(0, MAX_ROWS).map(line)), { look: "bare small" });
    const item = el("li", { class: "folded" }, open);
    return item;
  };
  const line = ([one, other, depth, isSame]) => el("li", { class: isSame ? "" : "is-other" }, cell(a, one, depth), cell(b, other, depth));
  const cell = (side, number, depth) => {
    if (number === null) return el("span", { class: "cell quiet" }, "–");
    const row = side.rows[number];
    const node = link([
      el("span", { class: "cell-head" }, el("span", { class: "square" }), el("span", { class: "vname" }, row.n), row.s && el("span", { class: "step" }, row.s), row.b > row.a && el("span", { class: "quiet" }, seconds(row.b - row.a)), row.c !== undefined && el("span", { class: "quiet" }, money(row.c))),
      el("span", { class: "peek" }, oneLine(row.p, 140)),
    ], `${address(side.head.id)}#row-${number}`, { class: `cell k-${row.k}${row.x ? " is-bad-row" : ""}` });
    node.style.paddingLeft = `${10 + Math.min(depth, 6) * 12}px`;
    return node;
  };
  let same = [], differ = 0;
  for (const pair of [...pairs, null]) {
    if (pair?.[3]) same.push(pair);
    else {
      if (differ <= MAX_ROWS) put(list, same.length > 2 ? folded(same) : same.map(line));
      same = [];
      if (pair && differ++ < MAX_ROWS) put(list, line(pair));
    }
  }
  if (differ > MAX_ROWS) put(list, el("li", { class: "folded quiet" }, `and ${many(differ - MAX_ROWS, "more different row")}`));
  const id = "of-steps";
  return el("section", { class: "card", "aria-labelledby": id }, el("header", {}, el("h2", { id }, "Steps"), el("span", { class: "quiet" }, differ ? `${many(differ, "row")} of ${count(pairs.length)} differ` : "all equal")), list);
}
