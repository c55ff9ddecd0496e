// The fleet: the workers of a store, their queue, and open requests.

import { chip, el, fetchJson, fill, link, notify } from "./dom.js";
import { requestCard } from "./requests.js";
import { ago, className, count, many, seconds, when } from "./text.js";

const INTERVAL = 2000;

export function fleetPage(main, site) {
  document.title = "Fleet · acorn";
  const sums = el("p", { class: "quiet", role: "status" });
  const workers = el("div", {}), agents = el("div", {}), asked = el("div", { class: "asked" });
  let drawn = "", cards = new Map();
  fill(main, el("div", { class: "runs fleet" }, el("div", { class: "runs-head" }, el("h1", {}, "Fleet"), chip(site.store, "mono")), sums, asked,
    el("section", { class: "card", "aria-labelledby": "agents" }, el("h2", { id: "agents" }, "Agents"), agents),
    el("section", { class: "card", "aria-labelledby": "workers" }, el("h2", { id: "workers" }, "Workers"), workers)));

  async function load() {
    const fleet = await fetchJson("/api/fleet");
    if (fleet.error) {
      sums.textContent = fleet.error;
      return;
    }
    const sum = (name) => fleet.agents.reduce((all, each) => all + each[name], 0);
    sums.textContent = `${many(fleet.workers.length, "worker")}, ${count(sum("queued"))} queued, ${count(sum("running"))} running, ${count(sum("done"))} done in the last minute`;
    fill(agents, table("agents", ["agent", "queued", "oldest", "delayed", "running", "waiting", "done / min", "failed / h"], fleet.agents.map((each) => [
      link(className(each.agent), `/runs/?agent=${encodeURIComponent(className(each.agent))}`, { title: each.agent }),
      count(each.queued), each.oldest === null ? "" : seconds(each.oldest), count(each.delayed), count(each.running), count(each.waiting), count(each.done), count(each.failed)])));
    fill(workers, table("workers", ["worker", "runs", "at a time", "agents", "since"], fleet.workers.map((each) => [
      `${each.host} ${each.pid}`, count(each.running), count(each.concurrency), each.agents.map(className).join(", "), el("span", { title: when(each.started) }, ago(each.started))])));
    const waiting = JSON.stringify(fleet.requests.map((each) => each.id));
    if (waiting === drawn) return;  // The user may be writing an answer.
    drawn = waiting;
    const written = document.activeElement;
    cards = new Map(fleet.requests.map((each) => [each.id, cards.get(each.id) ?? el("div", {}, requestCard(each, answer), el("p", { class: "hint" }, link("Run", `/runs/${encodeURIComponent(each.root)}`)))]));
    fill(asked, [...cards.values()]);
    if (asked.contains(written)) written.focus();
  }

  async function answer(request, value) {
    const response = await fetchJson(`/api/requests/${encodeURIComponent(request.id)}`, { method: "POST", body: { value } });
    if (response.error) return response.error;
    notify("Answered. A worker resumes the run.");
    await load();
    return null;
  }

  setInterval(() => {
    if (!document.hidden) load();
  }, INTERVAL);
  return load();
}

function table(name, heads, lines) {
  if (!lines.length) return el("p", { class: "quiet" }, name === "workers" ? "No worker is running. Start one: acorn work FILE:CLASS --store …" : "No runs are queued.");
  return el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": name }, el("table", { class: "values" },
    el("thead", {}, el("tr", {}, heads.map((each) => el("th", { scope: "col" }, each)))), el("tbody", {}, lines.map((line) => el("tr", {}, line.map((each) => el("td", {}, each)))))));
}
