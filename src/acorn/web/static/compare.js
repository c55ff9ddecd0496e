// Two runs side by side: what they cost, what they were given and gave, and their steps. What is the same is folded.

import { ask, button, chip, el, fill, link, put, statusView } from "./dom.js";
import { ago, className, count, gist, many, money, oneLine, seconds, short, stateOf, stateWords } from "./text.js";
import { valueView } from "./value.js";

const SHOWN = 400;
const address = (id) => `/runs/${encodeURIComponent(id)}`;

export async function comparePage(main) {
  const wanted = new URLSearchParams(location.search);
  const [a, b] = [wanted.get("a") ?? "", wanted.get("b") ?? ""];
  document.title = "Compare · acorn";
  if (!b) return choose(main, a);
  const found = await ask(`/api/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`);
  if (found.error) return fill(main, el("div", { class: "wait" }, el("p", { class: "wrong" }, found.error), link("All runs", "/runs/")));
  const heads = [found.a.head, found.b.head];
  const turned = link("Turn round", `/compare?a=${encodeURIComponent(b)}&b=${encodeURIComponent(a)}`, { class: "button small" });
  return fill(main, el("div", { class: "runs compare" }, el("div", { class: "runs-head" }, el("h1", {}, "Two runs"), turned),
    el("div", { class: "sides", role: "group", "aria-label": "The runs" }, heads.map(headView)), figures(heads),
    fields("Input", heads.map((head) => head.input)), fields("Answer", heads.map((head) => head.output ?? head.error)), steps(found)));
}

/** The run is known, and the other is chosen from a list; first of all the one that it was forked from. */
async function choose(main, a) {
  const [first, list] = await Promise.all([ask(`/api/runs/${encodeURIComponent(a)}/view`), ask("/api/runs")]);
  const wrong = first.error ?? list.error;
  if (wrong) return fill(main, el("div", { class: "wait" }, el("p", { class: "wrong" }, wrong), link("All runs", "/runs/")));
  const origin = first.head.forked_from?.run;
  const near = (run) => (run.id === origin ? 0 : run.agent === first.head.agent ? 1 : 2);
  const others = list.runs.filter((run) => run.id !== a).sort((one, other) => near(one) - near(other));
  const line = (run) => el("li", {}, link([
    statusView(stateOf(run), stateWords(stateOf(run))),
    el("span", { class: "gist" }, el("span", { class: "gist-in" }, oneLine(run.input) || short(run.id)), el("span", { class: "gist-out" }, run.id === origin ? "it was forked from this one" : className(run.agent))),
    el("span", { class: "figure" }, run.started && ago(run.started)),
  ], `/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(run.id)}`, { class: "run-line is-short" }));
  fill(main, el("div", { class: "runs compare" }, el("h1", {}, `${gist(first.head.input, 80) || short(a)} beside …`),
    others.length ? el("ul", { class: "run-list" }, others.map(line)) : el("p", { class: "quiet" }, "There is no other run.")));
  main.querySelector(".run-line")?.focus();
}

function headView(head) {
  const fork = head.forked_from && chip(`fork before step ${head.forked_from.before}`, "", "branch");
  return el("div", {}, el("h2", {}, link(gist(head.input, 120) || short(head.id), address(head.id))),
    el("div", { class: "chips" }, statusView(stateOf(head), stateWords(stateOf(head))), chip(short(head.id), "mono"), fork));
}

function figures(heads) {
  const tokens = (head) => (head.usage?.input_tokens ?? 0) + (head.usage?.output_tokens ?? 0);
  const lines = [
    ["agent", (head) => className(head.agent)], ["model", (head) => head.model ?? ""],
    ["time", (head) => head.seconds, seconds], ["steps", (head) => head.steps, count], ["tokens", tokens, count], ["cost", (head) => head.cost, money],
  ];
  const rows = lines.map(([name, of, words = String]) => {
    const [one, other] = heads.map(of);
    const share = typeof one === "number" && typeof other === "number" && one > 0 && other !== one ? ` ${other > one ? "+" : "−"}${Math.round(Math.abs(other / one - 1) * 100)} %` : "";
    return el("tr", { class: one === other ? "" : "is-other" }, el("th", { scope: "row" }, name), [one, other].map((value, at) => el("td", {}, value === undefined || value === null ? "–" : words(value), at === 1 && share && el("span", { class: "quiet" }, share))));
  });
  return table("Figures", rows);
}

function table(title, rows) {
  const id = `of-${title.toLowerCase()}`;
  return el("section", { class: "card", "aria-labelledby": id }, el("h2", { id }, title), el("table", { class: "versus" }, el("thead", { class: "sr" }, el("tr", {}, ["what", "first", "second"].map((words) => el("th", { scope: "col" }, words)))), el("tbody", {}, rows)));
}

/** Two values, field by field; those that differ are marked. */
function fields(title, values) {
  const isRecord = (value) => value && typeof value === "object" && !Array.isArray(value);
  const names = values.every(isRecord) ? [...new Set(values.flatMap((value) => Object.keys(value)))] : [null];
  const rows = names.map((name) => {
    const both = values.map((value) => (name === null ? value : value[name]));
    const isSame = JSON.stringify(both[0]) === JSON.stringify(both[1]);
    return el("tr", { class: isSame ? "" : "is-other" }, el("th", { scope: "row" }, name ?? title.toLowerCase()),
      isSame ? el("td", { colspan: 2 }, valueView(both[0])) : both.map((value) => el("td", {}, value === undefined ? el("span", { class: "none" }, "not there") : valueView(value))));
  });
  return table(title, rows);
}

function steps({ a, b, pairs }) {
  const list = el("ol", { class: "pairs" });
  const folded = (same) => {
    const open = button(`${many(same.length, "row")} the same`, () => item.replaceWith(...same.slice(0, SHOWN).map(line)), { look: "bare small" });
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
      if (differ <= SHOWN) put(list, same.length > 2 ? folded(same) : same.map(line));
      same = [];
      if (pair && differ++ < SHOWN) put(list, line(pair));
    }
  }
  if (differ > SHOWN) put(list, el("li", { class: "folded quiet" }, `and ${many(differ - SHOWN, "row")} more that differ`));
  const id = "of-steps";
  return el("section", { class: "card", "aria-labelledby": id }, el("header", {}, el("h2", { id }, "Steps"), el("span", { class: "quiet" }, differ ? `${many(differ, "row")} of ${count(pairs.length)} differ` : "all the same")), list);
}
