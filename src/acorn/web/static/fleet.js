// The fleet: the workers of a store, what they have to do, and what people are asked.

import { ask, chip, el, fill, link, say } from "./dom.js";
import { requestCard } from "./people.js";
import { ago, className, count, many, seconds, when } from "./text.js";

const EVERY = 2000;

export function fleetPage(main, site) {
  document.title = "Fleet · acorn";
  const sums = el("p", { class: "quiet", role: "status" });
  const workers = el("div", {}), agents = el("div", {}), asked = el("div", { class: "asked" });
  let drawn = "", cards = new Map();
  fill(main, el("div", { class: "runs fleet" }, el("div", { class: "runs-head" }, el("h1", {}, "Fleet"), chip(site.store, "mono")), sums, asked,
    el("section", { class: "card", "aria-labelledby": "the-agents" }, el("h2", { id: "the-agents" }, "What there is to do"), agents),
    el("section", { class: "card", "aria-labelledby": "the-workers" }, el("h2", { id: "the-workers" }, "Workers"), workers)));

  async function load() {
    const found = await ask("/api/fleet");
    if (found.error) {
      sums.textContent = found.error;
      return;
    }
    const sum = (name) => found.agents.reduce((all, each) => all + each[name], 0);
    sums.textContent = `${many(found.workers.length, "worker")}, ${count(sum("queued"))} queued, ${count(sum("running"))} running, ${count(sum("done"))} done in a minute`;
    fill(agents, table("agents", ["agent", "queued", "oldest", "delayed", "running", "waiting", "done / min", "failed / h"], found.agents.map((each) => [
      link(className(each.agent), `/runs/?agent=${encodeURIComponent(className(each.agent))}`, { title: each.agent }),
      count(each.queued), each.oldest === null ? "" : seconds(each.oldest), count(each.delayed), count(each.running), count(each.waiting), count(each.done), count(each.failed)])));
    fill(workers, table("workers", ["worker", "runs", "at a time", "agents", "since"], found.workers.map((each) => [
      `${each.host} ${each.pid}`, count(each.running), count(each.concurrency), each.agents.map(className).join(", "), el("span", { title: when(each.started) }, ago(each.started))])));
    const waiting = JSON.stringify(found.requests.map((each) => each.id));
    if (waiting === drawn) return;  // somebody may be writing an answer
    drawn = waiting;
    const written = document.activeElement;
    cards = new Map(found.requests.map((each) => [each.id, cards.get(each.id) ?? el("div", {}, requestCard(each, answer), el("p", { class: "hint" }, link("The run", `/runs/${encodeURIComponent(each.root)}`)))]));
    fill(asked, [...cards.values()]);
    if (asked.contains(written)) written.focus();
  }

  async function answer(request, value) {
    const found = await ask(`/api/requests/${encodeURIComponent(request.id)}`, { method: "POST", body: { value } });
    if (found.error) return found.error;
    say("Answered; a worker goes on with it");
    await load();
    return null;
  }

  setInterval(() => {
    if (!document.hidden) load();
  }, EVERY);
  return load();
}

function table(name, heads, lines) {
  if (!lines.length) return el("p", { class: "quiet" }, name === "workers" ? "No worker lives; start one: acorn work FILE:CLASS --store …" : "There is nothing to do.");
  return el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": name }, el("table", { class: "values" },
    el("thead", {}, el("tr", {}, heads.map((each) => el("th", { scope: "col" }, each)))), el("tbody", {}, lines.map((line) => el("tr", {}, line.map((each) => el("td", {}, each)))))));
}
