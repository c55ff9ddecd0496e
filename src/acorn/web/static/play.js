// The playground: the form on the one side, what comes of it on the other.

import { ask, base, button, chip, el, fill, follow, icon, link, put, say, statusView, tabs } from "./dom.js";
import { makeForm } from "./form.js";
import { Story } from "./progress.js";
import { className, fromJson, gist, isRecord, many, money, seconds, single, stateOf, stateWords } from "./text.js";
import { valueView } from "./value.js";

export function playPage(main, agent) {
  const page = new Play(agent);
  fill(main, page.node);
  const run = new URLSearchParams(location.search).get("run");
  if (run) page.show(run, { fills: true });
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
    for (const what of ["dragover", "drop"]) {
      document.addEventListener(what, (event) => {
        if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();  // beside its place, a browser would open the file instead of the page
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
    this.formPane = el("div", { role: "tabpanel", id: "pane-form", "aria-labelledby": "tab-form" }, agent.input.empty ? el("p", { class: "quiet" }, "It takes no input.") : this.form.node);
    this.tabs = tabs([["form", "Form"], ["json", "JSON"]], (which) => this.turn(which === "json"));
    this.wrong = el("div", { class: "wrong whole", role: "alert", hidden: true });
    this.go = button("Run", () => this.start(), { look: "primary big", picture: "play" });
    this.halt = button("Stop", (event) => event.detail > 1 || this.stop(), { look: "big", picture: "stop" });
    this.halt.hidden = true;
    this.talk = el("div", { class: "talk", hidden: true });
    const bar = el("div", { class: "bar" }, this.wrong, this.talk, el("div", { class: "actions" }, this.go, this.halt, this.keys = el("span", { class: "keys" }, el("kbd", {}, "Ctrl"), el("kbd", {}, "Enter"))));
    return el("section", { class: "side", "aria-label": "Input" },
      el("div", { class: "about" }, el("h1", {}, agent.name), agent.doc && el("p", { class: "lead" }, agent.doc), el("div", { class: "chips" }, parts)),
      !agent.input.empty && this.tabs.node, this.formPane, this.jsonPane, bar);
  }

  turn(isJson) {
    if (isJson === this.isJson) return;
    if (isJson) this.json.value = JSON.stringify(this.form.read(), null, 2);
    else {
      const value = this.typed();
      if (value === undefined) {
        this.tabs.choose("json");
        return;
      }
      this.form.fill(value);
    }
    this.isJson = isJson;
    this.formPane.hidden = isJson;
    this.jsonPane.hidden = !isJson;
    this.complain([]);
  }

  typed() {
    try {
      const value = fromJson(this.json.value || "{}");
      if (isRecord(value)) return value;
      this.complain([{ path: "", message: "The input is no JSON object." }]);
    } catch (error) {
      this.complain([{ path: "", message: String(error.message) }]);
    }
    return undefined;
  }

  complain(problems, error) {
    const left = this.isJson ? problems : this.form.mark(problems);
    if (!problems.length) this.form.clear();
    const lines = left.map((each) => each.message.replaceAll("`", ""));
    if (!problems.length && error) lines.push(error);
    this.wrong.hidden = !lines.length;
    fill(this.wrong, lines.map((each) => el("p", {}, icon("warn"), each)));
  }

  async start() {
    if (this.isBusy) return;
    if (!this.isJson && !(await this.form.isReady())) return;
    const input = this.isJson ? this.typed() : this.form.read();
    if (input === undefined || this.isBusy) return;
    this.busy(true);
    this.halt.disabled = true;  // there is nothing to stop yet: it stands where a second click falls
    const found = await ask("/api/runs", { method: "POST", body: { input, ...(this.after ? { after: this.after.id } : {}) } });
    if (found.error) {
      this.busy(false);
      this.complain(found.problems ?? [], found.error);
      return;
    }
    this.complain([]);
    history.pushState(null, "", `${base}/?run=${found.id}`);
    this.given = input;
    this.show(found.id);
  }

  async stop() {
    this.halt.disabled = true;
    const found = await ask(`/api/runs/${encodeURIComponent(this.runId)}/stop`, { method: "POST" });
    if (found.error) say(found.error);
  }

  busy(isBusy) {
    this.isBusy = isBusy;
    this.go.hidden = isBusy;
    this.halt.hidden = !isBusy;
    this.keys.hidden = isBusy;
    this.halt.disabled = false;
  }

  // What comes of it

  right() {
    this.earlier = el("div", { class: "earlier" });
    this.status = el("div", { class: "status", role: "status" });
    this.facts = el("div", { class: "chips" });
    this.acts = el("div", { class: "actions" });
    this.head = el("div", { class: "run-head", hidden: true }, this.status, this.facts, this.acts);
    this.asked = el("div", { class: "asked" });
    this.out = el("div", { class: "out" });
    this.empty = el("div", { class: "blank" }, el("img", { src: `${base}/static/acorn.svg`, alt: "", width: 56, height: 56 }), el("p", {}, "Fill in the form and run it. What happens is shown here, step by step."), el("p", {}, link("Runs that were kept", "/runs/")));
    return el("section", { class: "stage", "aria-label": "Run" }, this.earlier, this.head, this.asked, this.empty, this.out);
  }

  show(id, { fills = false } = {}) {
    this.shut?.();
    this.runId = id;
    this.story = new Story(id, this.agent.output);
    this.empty.hidden = true;
    this.head.hidden = false;
    fill(this.asked);
    fill(this.out, this.story.answer.node, this.story.node);
    this.busy(true);
    this.set("running");
    this.setAfter(null);
    fill(this.earlier);
    this.isTold = this.hasTalk = false;
    fill(this.acts);
    if (matchMedia("(max-width: 860px)").matches) this.head.scrollIntoView({ block: "start" });
    const ticker = setInterval(() => this.told(), 250);
    const close = follow(`/api/runs/${encodeURIComponent(id)}/stream`, (events) => {
      for (const event of events) {
        if (event.entry === "reset") this.story.reset();
        else if (event.entry === "end") this.ended(event, fills);
        else {
          if (event.entry === "RunStarted" && event.run_id === id) {
            this.given ??= event.input;  // of what was typed here, the files too
            if (fills) this.refill(event.input);
          }
          this.story.hear(event);
        }
        if (event.entry === "ModelResponded" || event.entry === "end") this.loadTalk(id);
      }
      this.told();
    }, () => this.lost(id));
    this.shut = () => {
      clearInterval(ticker);
      close();
    };
  }

  async lost(id) {
    const found = await ask(`/api/runs/${encodeURIComponent(id)}/view`);
    if (found.status === 404 && id === this.runId) {
      this.shut();
      this.busy(false);
      this.set("failed");
      this.story.hear({ entry: "fault", run_id: id, error: "There is no such run here." });
      this.story.end();
    } else if (found.status === 0) this.set("lost");
  }

  refill(input) {
    this.form.fill(input);
    if (this.isJson) this.json.value = JSON.stringify(input, null, 2);
  }

  set(status) {
    const words = status === "waiting" ? "waits for you" : stateWords(status);
    statusView(status, words, this.status);
    document.title = `${words} · ${this.agent.name} · acorn`;
  }

  told(head) {
    const totals = this.story.totals;
    const took = head ? head.seconds : this.isBusy ? Math.max(totals.at, (performance.now() - totals.began) / 1000) : totals.at;
    const tokens = head?.usage ? head.usage.input_tokens + head.usage.output_tokens : totals.tokens;
    const cost = head ? head.cost : totals.cost;
    if (!head && this.isTold) return;
    fill(this.facts, chip(many(head?.steps ?? totals.steps, "step")), chip(many(tokens, "token")), cost !== null && cost !== undefined && chip(money(cost)), chip(seconds(took)));
    this.isTold = Boolean(head);
  }

  ended(event, fills) {
    this.shut();
    const head = event.head;
    this.story.end(head?.status === "waiting");
    this.busy(false);
    this.set(head ? stateOf(head) : "failed");
    this.told(head ?? undefined);
    if (event.requests.length) this.askPeople(event.requests);
    if (head && !head.own) this.notOwn(head);
    const id = encodeURIComponent(this.runId);
    fill(this.acts,
      head && link([icon("list"), el("span", {}, "Timeline")], `/runs/${id}`, { class: "button" }),
      head?.own && head.status === "done" && button("Continue", () => this.setAfter(this.runId), { picture: "talk", title: "Go on with this conversation" }),
      head?.own && ["stopped", "failed"].includes(head.status) && button("Go on", () => this.resume(), { picture: "play", title: "Go on from where it stopped" }),
      button("Again", () => this.again(), { picture: "again", title: "Fill the form with this input" }));
    if (head?.own && fills) this.refill(head.input ?? this.given ?? {});
  }

  notOwn(head) {
    this.out.prepend(el("p", { class: "quiet" }, `A run of ${className(head.agent)}, not of ${this.agent.name}.`));
  }

  async askPeople(requests) {
    const id = this.runId;
    const { requestCard } = await import("./requests.js");
    if (id === this.runId) fill(this.asked, requests.map((each) => requestCard(each, (request, value) => this.answer(request, value))));
  }

  async answer(request, value) {
    const found = await ask(`/api/requests/${encodeURIComponent(request.id)}`, { method: "POST", body: { value } });
    if (found.error) return found.error;
    if (found.resumed) this.show(this.runId);
    else say("Answered; it goes on when all is answered.");
    return null;
  }

  async resume() {
    const found = await ask(`/api/runs/${encodeURIComponent(this.runId)}/resume`, { method: "POST" });
    if (found.error) say(found.error);
    else this.show(this.runId);
  }

  again() {
    this.setAfter(null);
    this.refill(this.given ?? {});
    this.form.focus();
    scrollTo({ top: 0 });
  }

  // A conversation

  setAfter(id) {
    this.after = id && { id };
    this.talk.hidden = !id;
    if (!id) return;
    fill(this.talk, icon("talk"), el("span", {}, "goes on with the conversation"), button("", () => this.setAfter(null), { look: "bare small", picture: "cross", label: "Begin anew" }));
    this.form.fill({});
    this.form.focus();
  }

  async loadTalk(id) {
    if (this.hasTalk) return;
    this.hasTalk = true;
    const found = await ask(`/api/runs/${encodeURIComponent(id)}/conversation`);
    if (found.error || id !== this.runId || !found.runs.length) return;
    put(this.earlier, found.runs.map((each) => el("details", { class: "exchange" }, el("summary", {}, icon("talk"), el("span", {}, gist(each.input, 120))), el("div", { class: "exchange-body" }, valueView(single(each.output)), link("Timeline", `/runs/${encodeURIComponent(each.id)}`)))));
  }
}

function titled(node, title) {
  if (title) node.title = title;
  return node;
}
