// The playground: the input form and the run.

import { base, button, chip, el, fetchJson, fill, follow, icon, link, notify, put, statusView, tabs } from "./dom.js";
import { makeForm } from "./form.js";
import { RunProgress } from "./progress.js";
import { className, fromJson, isRecord, many, money, seconds, stateOf, stateWords, summary, unwrap } from "./text.js";
import { valueView } from "./value.js";

export function playPage(main, agent) {
  const page = new Play(agent);
  fill(main, page.node);
  const run = new URLSearchParams(location.search).get("run");
  if (run) page.show(run, { fillsForm: true });
  else page.form.focus();
  addEventListener("popstate", () => location.reload());
}

class Play {
  constructor(agent) {
    this.agent = agent;
    this.form = makeForm(agent.input);
    this.after = null;
    this.isJson = false;
    this.runId = null;
    this.node = el("div", { class: "play" }, this.left(), this.right());
    for (const name of ["dragover", "drop"]) {
      document.addEventListener(name, (event) => {
        if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();  // Otherwise the browser would open the file.
        event.dataTransfer.dropEffect = "none";
      });
    }
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.start();
      }
    });
  }

  // The form

  left() {
    const { agent } = this;
    const parts = [
      ...agent.tools.map((each) => titled(chip(each.name, "", "tool"), each.doc)),
      ...agent.branches.map((each) => titled(chip(each.name, "", "branch"), each.doc)),
      agent.limits.max_steps && chip(`≤ ${many(agent.limits.max_steps, "step")}`),
      agent.limits.max_cost && chip(`≤ ${money(agent.limits.max_cost)}`),
      agent.limits.max_seconds && chip(`≤ ${seconds(agent.limits.max_seconds)}`),
      agent.limits.max_total_tokens && chip(`≤ ${many(agent.limits.max_total_tokens, "token")}`),
    ];
    this.json = el("textarea", { class: "code", rows: 12, spellcheck: "false", "aria-label": "Input as JSON" });
    this.jsonPane = el("div", { class: "field", hidden: true, role: "tabpanel", id: "pane-json", "aria-labelledby": "tab-json" }, this.json);
    this.formPane = el("div", { role: "tabpanel", id: "pane-form", "aria-labelledby": "tab-form" }, agent.input.empty ? el("p", { class: "quiet" }, "The agent has no input.") : this.form.node);
    this.tabs = tabs([["form", "Form"], ["json", "JSON"]], (name) => this.setJson(name === "json"));
    this.wrong = el("div", { class: "wrong whole", role: "alert", hidden: true });
    this.go = button("Run", () => this.start(), { look: "primary big", picture: "play" });
    this.halt = button("Stop", (event) => event.detail > 1 || this.stop(), { look: "big", picture: "stop" });
    this.halt.hidden = true;
    this.conversation = el("div", { class: "talk", hidden: true });
    const bar = el("div", { class: "bar" }, this.wrong, this.conversation, el("div", { class: "actions" }, this.go, this.halt, this.keys = el("span", { class: "keys" }, el("kbd", {}, "Ctrl"), el("kbd", {}, "Enter"))));
    return el("section", { class: "side", "aria-label": "Input" },
      el("div", { class: "about" }, el("h1", {}, agent.name), agent.doc && el("p", { class: "lead" }, agent.doc), el("div", { class: "chips" }, parts)),
      !agent.input.empty && this.tabs.node, this.formPane, this.jsonPane, bar);
  }

  setJson(isJson) {
    if (isJson === this.isJson) return;
    if (isJson) this.json.value = JSON.stringify(this.form.read(), null, 2);
    else {
      const value = this.readJson();
      if (value === undefined) {
        this.tabs.choose("json");
        return;
      }
      this.form.fill(value);
    }
    this.isJson = isJson;
    this.formPane.hidden = isJson;
    this.jsonPane.hidden = !isJson;
    this.showProblems([]);
  }

  readJson() {
    try {
      const value = fromJson(this.json.value || "{}");
      if (isRecord(value)) return value;
      this.showProblems([{ path: "", message: "The input must be a JSON object." }]);
    } catch (error) {
      this.showProblems([{ path: "", message: String(error.message) }]);
    }
    return undefined;
  }

  showProblems(problems, error) {
    const unplaced = this.isJson ? problems : this.form.mark(problems);
    if (!problems.length) this.form.clear();
    const lines = unplaced.map((each) => each.message.replaceAll("`", ""));
    if (!problems.length && error) lines.push(error);
    this.wrong.hidden = !lines.length;
    fill(this.wrong, lines.map((each) => el("p", {}, icon("warn"), each)));
  }

  async start() {
    if (this.isBusy) return;
    if (!this.isJson && !(await this.form.isReady())) return;
    const input = this.isJson ? this.readJson() : this.form.read();
    if (input === undefined || this.isBusy) return;
    this.setBusy(true);
    this.halt.disabled = true;  // A double click on Run would press this button.
    const result = await fetchJson("/api/runs", { method: "POST", body: { input, ...(this.after ? { after: this.after.id } : {}) } });
    if (result.error) {
      this.setBusy(false);
      this.showProblems(result.problems ?? [], result.error);
      return;
    }
    this.showProblems([]);
    history.pushState(null, "", `${base}/?run=${result.id}`);
    this.input = input;
    this.show(result.id);
  }

  async stop() {
    this.halt.disabled = true;
    const result = await fetchJson(`/api/runs/${encodeURIComponent(this.runId)}/stop`, { method: "POST" });
    if (result.error) notify(result.error);
  }

  setBusy(isBusy) {
    this.isBusy = isBusy;
    this.go.hidden = isBusy;
    this.halt.hidden = !isBusy;
    this.keys.hidden = isBusy;
    this.halt.disabled = false;
  }

  // The run

  right() {
    this.earlier = el("div", { class: "earlier" });
    this.status = el("div", { class: "status", role: "status" });
    this.facts = el("div", { class: "chips" });
    this.acts = el("div", { class: "actions" });
    this.head = el("div", { class: "run-head", hidden: true }, this.status, this.facts, this.acts);
    this.asked = el("div", { class: "asked" });
    this.out = el("div", { class: "out" });
    this.empty = el("div", { class: "blank" }, el("img", { src: `${base}/static/acorn.svg`, alt: "", width: 56, height: 56 }), el("p", {}, "Fill in the form and run the agent. Its steps appear here."), el("p", {}, link("Saved runs", "/runs/")));
    return el("section", { class: "stage", "aria-label": "Run" }, this.earlier, this.head, this.asked, this.empty, this.out);
  }

  show(id, { fillsForm = false } = {}) {
    this.closeStream?.();
    this.runId = id;
    this.progress = new RunProgress(id, this.agent.output);
    this.empty.hidden = true;
    this.head.hidden = false;
    fill(this.asked);
    fill(this.out, this.progress.answer.node, this.progress.node);
    this.setBusy(true);
    this.setStatus("running");
    this.setAfter(null);
    fill(this.earlier);
    this.hasFinalFacts = this.hasConversation = false;
    fill(this.acts);
    if (matchMedia("(max-width: 860px)").matches) this.head.scrollIntoView({ block: "start" });
    const ticker = setInterval(() => this.showFacts(), 250);
    const close = follow(`/api/runs/${encodeURIComponent(id)}/stream`, (events) => {
      for (const event of events) {
        if (event.entry === "reset") this.progress.reset();
        else if (event.entry === "end") this.ended(event, fillsForm);
        else {
          if (event.entry === "RunStarted" && event.run_id === id) {
            this.input ??= event.input;  // The form also contains the files.
            if (fillsForm) this.refill(event.input);
          }
          this.progress.add(event);
        }
        if (event.entry === "ModelResponded" || event.entry === "end") this.loadConversation(id);
      }
      this.showFacts();
    }, () => this.lost(id));
    this.closeStream = () => {
      clearInterval(ticker);
      close();
    };
  }

  async lost(id) {
    const result = await fetchJson(`/api/runs/${encodeURIComponent(id)}/view`);
    if (result.status === 404 && id === this.runId) {
      this.closeStream();
      this.setBusy(false);
      this.setStatus("failed");
      this.progress.add({ entry: "fault", run_id: id, error: "This run does not exist." });
      this.progress.end();
    } else if (result.status === 0) this.setStatus("lost");
  }

  refill(input) {
    this.form.fill(input);
    if (this.isJson) this.json.value = JSON.stringify(input, null, 2);
  }

  setStatus(status) {
    const text = status === "waiting" ? "waiting for you" : stateWords(status);
    statusView(status, text, this.status);
    document.title = `${text} · ${this.agent.name} · acorn`;
  }

  showFacts(head) {
    const totals = this.progress.totals;
    const took = head ? head.seconds : this.isBusy ? Math.max(totals.at, (performance.now() - totals.began) / 1000) : totals.at;
    const tokens = head?.usage ? head.usage.input_tokens + head.usage.output_tokens : totals.tokens;
    const cost = head ? head.cost : totals.cost;
    if (!head && this.hasFinalFacts) return;
    fill(this.facts, chip(many(head?.steps ?? totals.steps, "step")), chip(many(tokens, "token")), cost !== null && cost !== undefined && chip(money(cost)), chip(seconds(took)));
    this.hasFinalFacts = Boolean(head);
  }

  ended(event, fillsForm) {
    this.closeStream();
    const head = event.head;
    this.progress.end(head?.status === "waiting");
    this.setBusy(false);
    this.setStatus(head ? stateOf(head) : "failed");
    this.showFacts(head ?? undefined);
    if (event.requests.length) this.showRequests(event.requests);
    if (head && !head.own) this.notOwn(head);
    const id = encodeURIComponent(this.runId);
    fill(this.acts,
      head && link([icon("list"), el("span", {}, "Timeline")], `/runs/${id}`, { class: "button" }),
      head?.own && head.status === "done" && button("Continue", () => this.setAfter(this.runId), { picture: "talk", title: "Continue this conversation" }),
      head?.own && ["stopped", "failed"].includes(head.status) && button("Resume", () => this.resume(), { picture: "play", title: "Resume the run where it stopped" }),
      button("Again", () => this.again(), { picture: "again", title: "Fill the form with this input" }));
    if (head?.own && fillsForm) this.refill(head.input ?? this.input ?? {});
  }

  notOwn(head) {
    this.out.prepend(el("p", { class: "quiet" }, `This run belongs to ${className(head.agent)}, not to ${this.agent.name}.`));
  }

  async showRequests(requests) {
    const id = this.runId;
    const { requestCard } = await import("./requests.js");
    if (id === this.runId) fill(this.asked, requests.map((each) => requestCard(each, (request, value) => this.answer(request, value))));
  }

  async answer(request, value) {
    const result = await fetchJson(`/api/requests/${encodeURIComponent(request.id)}`, { method: "POST", body: { value } });
    if (result.error) return result.error;
    if (result.resumed) this.show(this.runId);
    else notify("Answered. The run resumes after the last answer.");
    return null;
  }

  async resume() {
    const result = await fetchJson(`/api/runs/${encodeURIComponent(this.runId)}/resume`, { method: "POST" });
    if (result.error) notify(result.error);
    else this.show(this.runId);
  }

  again() {
    this.setAfter(null);
    this.refill(this.input ?? {});
    this.form.focus();
    scrollTo({ top: 0 });
  }

  // A conversation

  setAfter(id) {
    this.after = id && { id };
    this.conversation.hidden = !id;
    if (!id) return;
    fill(this.conversation, icon("talk"), el("span", {}, "continues the conversation"), button("", () => this.setAfter(null), { look: "bare small", picture: "cross", label: "New conversation" }));
    this.form.fill({});
    this.form.focus();
  }

  async loadConversation(id) {
    if (this.hasConversation) return;
    this.hasConversation = true;
    const result = await fetchJson(`/api/runs/${encodeURIComponent(id)}/conversation`);
    if (result.error || id !== this.runId || !result.runs.length) return;
    put(this.earlier, result.runs.map((each) => el("details", { class: "exchange" }, el("summary", {}, icon("talk"), el("span", {}, summary(each.input, 120))), el("div", { class: "exchange-body" }, valueView(unwrap(each.output)), link("Timeline", `/runs/${encodeURIComponent(each.id)}`)))));
  }
}

function titled(node, title) {
  if (title) node.title = title;
  return node;
}
