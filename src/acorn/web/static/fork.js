// A fork: the first steps of a run, with what is changed in them, and from there on anew.

import { ask, base, button, el, fill, icon, link } from "./dom.js";
import { many, short, words } from "./text.js";

const NAMES = { assistant: "the model said", call: "it called", result: "returned", error: "failed", input: "input", user: "said" };

export async function forkPage(main, agent) {
  const wanted = new URLSearchParams(location.search);
  const run = wanted.get("run") ?? "";
  document.title = "Fork · acorn";
  const given = wanted.get("before");
  const found = await ask(`/api/runs/${encodeURIComponent(run)}/fork${given ? `?before=${encodeURIComponent(given)}` : ""}`);
  const back = link(short(run), `/runs/${encodeURIComponent(run)}`, { class: "mono" });
  if (found.error) return fill(main, el("div", { class: "wait" }, el("p", { class: "wrong" }, found.error), el("p", {}, back)));
  const edits = new Map();
  const at = (step) => {
    wanted.set("before", step);
    return `/fork?${wanted}`;
  };
  const steps = el("select", { id: "before", on: { change: () => location.replace(base + at(steps.value)) } },
    Array.from({ length: found.last_step }, (_, index) => el("option", { value: index + 1, is: { selected: index + 1 === found.before } }, `step ${index + 1}`)));
  const model = el("input", { id: "model", type: "text", placeholder: agent.model ?? "the model of the agent", spellcheck: "false", autocomplete: "off" });
  const prompt = el("textarea", { id: "prompt", rows: 3, is: { value: found.prompt } });
  const wrong = el("p", { class: "wrong", role: "alert", hidden: true });
  const begin = button("Fork", async () => {
    begin.disabled = true;
    const fork = { run, before: found.before, edits: Object.fromEntries(edits) };
    if (prompt.value !== found.prompt) fork.prompt = prompt.value;
    const made = await ask("/api/runs", { method: "POST", body: { fork, ...(model.value.trim() ? { model: model.value.trim() } : {}) } });
    begin.disabled = false;
    wrong.hidden = !made.error;
    wrong.textContent = made.error ?? "";
    if (!made.error) location.assign(`${base}/?run=${encodeURIComponent(made.id)}`);
  }, { look: "primary big", picture: "branch" });
  const field = (id, name, node) => el("div", { class: "field" }, el("label", { class: "label", for: id }, name), node);
  return fill(main, el("div", { class: "runs fork" },
    el("div", { class: "runs-head" }, el("h1", {}, "Fork"), el("p", { class: "quiet" }, "of ", back)),
    wanted.has("branch") && ofBranch(wanted.get("branch"), Number(wanted.get("called")) || 1, at),
    el("section", { class: "card fields" }, field("before", "goes on at", steps), field("model", "model", model), field("prompt", "prompt", prompt)),
    el("section", { class: "card", "aria-labelledby": "what-is-kept" }, el("h2", { id: "what-is-kept" }, "What is kept, and may be changed"), el("ol", { class: "kept" }, found.events.map((each) => keptView(each, edits)))),
    el("div", { class: "note" }, icon("warn"), el("div", {}, warning(found).map((each) => el("p", {}, each)))),
    wrong, el("div", { class: "actions" }, begin)));
}

/** What can be forked where somebody wants to fork a branch. */
function ofBranch(name, step, at) {
  return el("p", { class: "note" }, el("span", {}, "A branch is not forked by itself, since it begins with the conversation of the run above it: at ", link(`step ${step}`, at(step)), ` \`${name}\` is called anew, at `, link(`step ${step + 1}`, at(step + 1)), " what it returned is kept, and may be changed."));
}

function warning({ tools, sources, called, before }) {
  const names = tools.map((name) => `\`${name}\``);
  if (sources) names.push(`those of ${many(sources, "source")}`);
  const again = Object.entries(called).map(([name, times]) => `\`${name}\` (${many(times, "time")})`);
  return [
    names.length ? `Tools are really called again if the model asks: ${names.join(", ")}.` : "It has no tools that could be called again.",
    again.length && `From step ${before} on the run called ${again.join(", ")}.`,
    "Usage and limits begin at zero. The run itself stays as it is.",
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
