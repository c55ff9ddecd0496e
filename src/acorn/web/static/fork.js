// A fork: a new run that continues the first steps of another run, which may be edited.

import { base, button, el, fetchJson, fill, icon, link } from "./dom.js";
import { many, short, words } from "./text.js";

const NAMES = { assistant: "model", call: "call of", result: "returned", error: "failed", input: "input", user: "user" };

export async function forkPage(main, agent) {
  const params = new URLSearchParams(location.search);
  const run = params.get("run") ?? "";
  document.title = "Fork · acorn";
  const before = params.get("before");
  const parts = await fetchJson(`/api/runs/${encodeURIComponent(run)}/fork${before ? `?before=${encodeURIComponent(before)}` : ""}`);
  const back = link(short(run), `/runs/${encodeURIComponent(run)}`, { class: "mono" });
  if (parts.error) return fill(main, el("div", { class: "wait" }, el("p", { class: "wrong" }, parts.error), el("p", {}, back)));
  const edits = new Map();
  const address = (step) => {
    params.set("before", step);
    return `/fork?${params}`;
  };
  const steps = el("select", { id: "before", on: { change: () => location.replace(base + address(steps.value)) } },
    Array.from({ length: parts.last_step }, (_, index) => el("option", { value: index + 1, is: { selected: index + 1 === parts.before } }, `step ${index + 1}`)));
  const model = el("input", { id: "model", type: "text", placeholder: agent.model ?? "model of the agent", spellcheck: "false", autocomplete: "off" });
  const prompt = el("textarea", { id: "prompt", rows: 3, is: { value: parts.prompt } });
  const wrong = el("p", { class: "wrong", role: "alert", hidden: true });
  const start = button("Fork", async () => {
    start.disabled = true;
    const fork = { run, before: parts.before, edits: Object.fromEntries(edits) };
    if (prompt.value !== parts.prompt) fork.prompt = prompt.value;
    const response = await fetchJson("/api/runs", { method: "POST", body: { fork, ...(model.value.trim() ? { model: model.value.trim() } : {}) } });
    start.disabled = false;
    wrong.hidden = !response.error;
    wrong.textContent = response.error ?? "";
    if (!response.error) location.assign(`${base}/?run=${encodeURIComponent(response.id)}`);
  }, { look: "primary big", picture: "branch" });
  const field = (id, name, node) => el("div", { class: "field" }, el("label", { class: "label", for: id }, name), node);
  return fill(main, el("div", { class: "runs fork" },
    el("div", { class: "runs-head" }, el("h1", {}, "Fork"), el("p", { class: "quiet" }, "of ", back)),
    params.has("branch") && branchNote(params.get("branch"), Number(params.get("called")) || 1, address),
    el("section", { class: "card fields" }, field("before", "continue at", steps), field("model", "model", model), field("prompt", "prompt", prompt)),
    el("section", { class: "card", "aria-labelledby": "kept-steps" }, el("h2", { id: "kept-steps" }, "Steps to keep and edit"), el("ol", { class: "kept" }, parts.events.map((each) => keptView(each, edits)))),
    el("div", { class: "note" }, icon("warn"), el("div", {}, warning(parts).map((each) => el("p", {}, each)))),
    wrong, el("div", { class: "actions" }, start)));
}

/** Explains which steps can be forked instead of a branch. */
function branchNote(name, step, address) {
  return el("p", { class: "note" }, el("span", {}, "A branch cannot be forked alone, because it starts with the conversation of its parent. At ", link(`step ${step}`, address(step)), `, \`${name}\` is called again. At `, link(`step ${step + 1}`, address(step + 1)), ", its result is kept and you can edit it."));
}

function warning({ tools, sources, called, before }) {
  const names = tools.map((name) => `\`${name}\``);
  if (sources) names.push(`the tools of ${many(sources, "source")}`);
  const again = Object.entries(called).map(([name, times]) => `\`${name}\` (${many(times, "time")})`);
  return [
    names.length ? `The model may call these tools again, with real effects: ${names.join(", ")}.` : "The agent has no tools that could be called again.",
    again.length && `From step ${before} on, the original run called ${again.join(", ")}.`,
    "Usage and limits start at zero. The original run does not change.",
  ].filter(Boolean);
}

function keptView(event, edits) {
  const title = `${event.step ? `${event.step} ` : ""}${event.kind === "call" ? `${NAMES.call} ${event.name}` : event.kind === "result" || event.kind === "error" ? `${event.name} ${NAMES[event.kind]}` : NAMES[event.kind] ?? words(event.kind)}`;
  if (!event.editable) return el("li", {}, el("h3", {}, title), el("pre", { tabindex: 0 }, event.text));
  const text = el("textarea", { class: "code", rows: 1, "aria-label": title, spellcheck: "false", is: { value: event.text } });
  text.addEventListener("input", () => {
    if (text.value === event.text) edits.delete(event.at);
    else edits.set(event.at, text.value);
    text.classList.toggle("is-edited", edits.has(event.at));
  });
  return el("li", {}, el("h3", {}, title), text);
}
