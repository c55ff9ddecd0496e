// A run in progress: its turns, calls, branches and answer. Each event redraws only one part.

import { copyButton, el, fill, icon, put } from "./dom.js";
import { isRecord, many, money, oneLine, parse, problemsIn, seconds, words } from "./text.js";
import { jsonView, textOrJsonView, textView, valueView } from "./value.js";

const FINISH = "__finish__";
const ticking = new Map();
setInterval(() => {
  const now = performance.now();
  for (const [node, since] of ticking) node.textContent = seconds(Math.floor((now - since) / 100) / 10);
}, 100);

export class RunProgress {
  constructor(root, output) {
    this.root = root;
    this.answer = new AnswerCard(output);
    this.node = el("div", { class: "progress" });
    this.reset();
  }

  reset() {
    for (const node of ticking.keys()) if (this.node.contains(node)) ticking.delete(node);
    this.runs = new Map();
    fill(this.node);
    this.answer.reset();
    this.totals = { steps: 0, tokens: 0, cost: null, began: performance.now(), at: 0 };
    this.runs.set(this.root, new RunPart(this.node, null));
  }

  add(event) {
    const handler = HANDLERS[event.entry];
    const run = this.runs.get(event.run_id);
    if (!handler || (!run && event.entry !== "RunStarted")) return;
    if (event.at !== undefined && run && !run.parent) this.totals.at = Math.max(this.totals.at, event.at);
    handler.call(this, event, run);
  }

  isRoot(run) {
    return run === this.runs.get(this.root);
  }

  count(usage, cost) {
    this.totals.tokens += usage.input_tokens + usage.output_tokens;
    if (cost !== null) this.totals.cost = (this.totals.cost ?? 0) + cost;
  }

  /** Stops the clocks when the run is over or waits for human input. */
  end(isWaiting) {
    for (const node of [...ticking.keys()]) if (this.node.contains(node)) ticking.delete(node);
    if (isWaiting) return;
    for (const run of this.runs.values()) run.end();
    this.answer.end();
  }
}

const HANDLERS = {
  RunStarted() {},
  MessagesAdded(event, run) {
    if (!run.opened) {
      run.opened = true;
      return;
    }
    const text = event.messages.map((each) => (typeof each.content === "string" ? each.content : JSON.stringify(each.content))).join("\n");
    run.note("note", "message", oneLine(text, 400));
  },
  ModelRequested(event, run) {
    run.startTurn(event);
  },
  chunk(event, run) {
    if (event.content) run.turn?.addText(event.content);
    if (event.reasoning) run.turn?.addReasoning(event.reasoning);
    if (event.tool_call) run.turn?.updateCall(event.tool_call);
    if (event.partial === undefined) return;
    run.turn?.startAnswer();
    if (this.isRoot(run)) this.answer.showPartial(event.partial, event.completed);
    else run.turn?.showPartial(event.partial);
  },
  ModelResponded(event, run) {
    this.count(event.usage, event.cost);
    if (this.isRoot(run)) this.totals.steps = Math.max(this.totals.steps, event.step);
    run.complete(event);
  },
  ToolStarted(event, run) {
    run.calls.get(event.call_id)?.start();
  },
  ToolFinished(event, run) {
    const took = event.began === null ? null : event.at - event.began;
    run.calls.get(event.call_id)?.finish(event.error ?? event.content, event.error !== null, took);
  },
  BranchStarted(event, run) {
    if (this.runs.has(event.child_id)) return;
    const part = run.branch(event);
    this.runs.set(event.child_id, new RunPart(part.body, run));
  },
  BranchFinished(event, run) {
    run.branches.get(event.child_id)?.finish(event.error ?? event.content, event.error !== null, event.seconds);
  },
  ToolResultsAdded(event, run) {
    for (const [id, content, form, took] of event.results) {
      const call = run.calls.get(id);
      if (!call) continue;
      if (call.isAnswer && form === "error") {
        call.refuse(content);
        if (this.isRoot(run)) this.answer.refuse();
      } else if (!call.isAnswer && !call.isOver) call.finish(content, form !== "text" && form !== "json", took);
    }
  },
  InputRequested(event, run) {
    if (event.kind === "approval") run.approvals.add(event.request_id);
    const call = run.calls.get(event.call_id);
    call?.wait(event.kind === "approval" ? "waiting for approval" : "waiting for an answer");
  },
  InputReceived(event, run) {
    const decision = run.approvals.has(event.request_id) ? parse(event.answer) : undefined;
    const word = isRecord(decision) && (decision.approved ? "approved" : "rejected");
    const detail = word && (decision.arguments ? JSON.stringify(decision.arguments) : decision.reason);
    run.note("person", "human input", oneLine(word ? [word, detail].filter(Boolean).join(": ") : event.answer, 400));
  },
  Compacted(event, run) {
    this.count(event.usage, event.cost);
    if (event.summary) run.note("note", "earlier steps were summarized", oneLine(event.summary, 400));
  },
  HistoryEdited(event, run) {
    run.note("note", "the history was edited", "");
  },
  RunFinished(event, run) {
    const value = event.form === "json" ? (parse(event.content) ?? event.content) : event.content;
    if (this.isRoot(run)) {
      if (event.form === "error") run.note("bad", "not finished", event.content);
      else this.answer.done(value);
    } else run.answer(value);
  },
  RunFailed(event, run) {
    run.end();
    run.note("bad", "failed", event.error);
  },
  RunInterrupted(event, run) {
    run.end();
    run.note("stopped", "stopped", /Cancelled|Interrupt/.test(event.error) ? "" : event.error);
  },
  fault(event, run) {
    run.note("bad", "failed", event.error);
  },
};

/** The view of one run of the tree. */
class RunPart {
  constructor(node, parent) {
    this.node = node;
    this.parent = parent;
    this.approvals = new Set();
    this.turn = null;
    this.calls = new Map();
    this.branches = new Map();
    this.opened = false;
  }

  startTurn(event) {
    if (this.turn && !this.turn.isComplete) this.turn.node.remove();
    this.turn = new TurnPart(event.step);
    this.node.append(this.turn.node);
  }

  complete(event) {
    if (!this.turn || this.turn.isComplete) this.startTurn(event);
    this.turn.complete(event, this.calls);
  }

  branch(event) {
    const call = this.calls.get(event.call_id);
    const inside = this.calls.get(event.inside);
    const part = call ?? new CallPart(event.branch.split("/").pop(), "");
    if (!call) (inside?.more() ?? this.turn?.callsNode ?? this.node).append(part.node);
    part.turnToBranch();
    part.start();
    this.branches.set(event.child_id, part);
    return part;
  }

  note(look, title, text) {
    this.node.append(el("div", { class: `note ${look}` }, el("strong", {}, title), text && el("span", {}, text)));
  }

  answer(value) {
    this.turn?.showAnswer(value);
  }

  end() {
    if (this.turn && !this.turn.isComplete) this.turn.stop();
    for (const call of this.calls.values()) if (!call.isOver && !call.isAnswer) call.stop();
  }
}

/** The view of one model response. */
class TurnPart {
  constructor(step) {
    this.isComplete = false;
    this.thought = el("div", { class: "thought" });
    this.thinking = el("details", { class: "thinking", hidden: true, open: true }, el("summary", {}, icon("think"), "reasoning"), this.thought);
    this.text = el("div", { class: "said" });
    this.callsNode = el("div", { class: "calls" });
    this.after = el("div", { class: "after" });
    this.meta = el("span", { class: "meta" });
    this.busy = el("span", { class: "busy", role: "img", "aria-label": "waiting for the model" });
    this.node = el("section", { class: "turn", "aria-label": `step ${step}` }, el("span", { class: "number", "aria-hidden": "true" }, step), el("div", { class: "turn-body" }, this.thinking, this.text, this.busy, this.callsNode, this.after));
    this.parts = new Map();
  }

  addText(text) {
    this.text.append(text);
  }

  addReasoning(text) {
    this.thinking.hidden = false;
    this.thought.append(text);
  }

  updateCall(call) {
    let part = this.parts.get(call.index);
    if (!part) {
      part = new CallPart(call.name, "");
      this.parts.set(call.index, part);
      this.callsNode.append(part.node);
    }
    part.write(call.name, call.arguments);
  }

  startAnswer() {
    if (!this.writing) {
      this.writing = el("p", { class: "quiet" }, "Writing the answer");
      this.after.append(this.writing);
    }
  }

  showPartial(value) {
    this.partial ??= this.after.appendChild(el("div", { class: "partial" }));
    fill(this.partial, valueView(value));
  }

  complete(event, calls) {
    this.isComplete = true;
    this.busy.remove();
    this.node.classList.add("is-complete");
    fill(this.text, event.content && textView(event.content, ""));
    if (event.reasoning) {
      this.thinking.hidden = false;
      fill(this.thought, event.reasoning);
    }
    this.thinking.open = false;
    fill(this.callsNode);
    this.writing?.remove();
    this.partial?.remove();
    this.partial = undefined;
    if (event.refusal) this.after.append(el("div", { class: "note bad" }, el("strong", {}, "refused"), el("span", {}, event.refusal)));
    for (const each of event.fallbacks ?? []) this.after.append(el("div", { class: "note" }, el("strong", {}, "fallback"), el("span", {}, `${each[0]} failed: ${each[2]}. ${each[1]} was used.`)));
    for (const [id, name, args] of event.calls) {
      const part = new CallPart(name, args);
      calls.set(id, part);
      (part.isAnswer ? this.after : this.callsNode).append(part.node);
    }
    const tokens = event.usage.input_tokens + event.usage.output_tokens;
    fill(this.meta, [seconds(event.at - event.asked), tokens && many(tokens, "token"), money(event.cost)].filter(Boolean).join(" · "));
    this.thinking.parentNode.prepend(this.meta);
  }

  showAnswer(value) {
    fill(this.after, el("div", { class: "partial" }, valueView(value)));
  }

  stop() {
    this.busy.remove();
    this.node.classList.add("is-complete");
  }
}

/** The view of a tool call, a branch or the final answer. */
class CallPart {
  constructor(name, args) {
    this.isAnswer = name === FINISH;
    this.isOver = false;
    if (this.isAnswer) {
      this.node = el("div", { class: "gave" }, icon("check"), el("span", {}, "returned the answer"));
      return;
    }
    this.name = el("span", { class: "call-name" }, name);
    this.args = el("span", { class: "call-args" }, oneLine(args));
    this.state = el("span", { class: "call-state" });
    this.inner = el("div", { class: "call-inner" });
    this.head = el("summary", {}, icon("tool"), this.name, this.args, this.state);
    this.node = el("details", { class: "call" }, this.head, this.inner);
    this.raw = args;
    this.node.addEventListener("toggle", () => this.show());
  }

  write(name, args) {
    if (this.isAnswer) return;
    this.name.textContent = name;
    this.args.textContent = oneLine(args);
    this.raw = args;
  }

  start() {
    if (this.isAnswer) return;
    this.isOver = false;
    fill(this.state);
    ticking.set(this.state, performance.now());
    this.node.classList.add("is-busy");
  }

  wait(words) {
    if (this.isAnswer) return;
    ticking.delete(this.state);
    fill(this.state, icon("person"), words);
  }

  finish(content, isBad, took) {
    if (this.isAnswer) return;
    this.isOver = true;
    ticking.delete(this.state);
    this.result = content;
    this.isBad = isBad;
    this.node.classList.remove("is-busy");
    this.node.classList.toggle("is-bad", isBad);
    fill(this.state, icon(isBad ? "cross" : "check", isBad ? "failed" : "done"), took === null || took === undefined ? (isBad ? "not called" : "") : seconds(took));
    if (isBad && !this.body) {
      this.why ??= this.node.parentNode && el("p", { class: "why" });
      if (this.why) {
        this.why.textContent = oneLine(content, 300);
        this.head.append(this.why);
      }
    }
    if (this.node.open) this.show(true);
  }

  stop() {
    ticking.delete(this.state);
    this.node.classList.remove("is-busy");
    fill(this.state, "stopped");
  }

  refuse(content) {
    const problems = problemsIn(content);
    const list = problems.length
      ? el("ul", {}, problems.map((each) => el("li", {}, el("code", {}, each.path || "answer"), ` must be ${each.expected}, got ${oneLine(each.received, 120)}`)))
      : el("p", {}, oneLine(content, 400));
    this.node.classList.add("is-refused");
    fill(this.node, icon("again"), el("div", {}, el("span", {}, "The answer was invalid and is requested again."), list));
  }

  /** Displays the arguments and the result of an opened call. */
  show(again) {
    if (this.body || !this.node.open || (this.shown === this.result && !again && this.inner.childNodes.length)) return;
    this.shown = this.result;
    const args = parse(this.raw);
    fill(this.inner, el("p", { class: "cap" }, "Arguments"), args === undefined ? textOrJsonView(this.raw || "") : jsonView(args));
    if (this.result !== undefined) put(this.inner, el("p", { class: "cap" }, this.isBad ? "Error" : "Result"), textOrJsonView(this.result));
    if (this.moreNode) put(this.inner, this.moreNode);
  }

  more() {
    this.moreNode ??= el("div", { class: "calls" });
    this.node.open = true;
    this.inner.append(this.moreNode);
    return this.moreNode;
  }

  turnToBranch() {
    if (this.body) return;
    this.body = el("div", { class: "branch-body" });
    const head = el("summary", {}, icon("branch"), this.name, this.args, this.state);
    const branch = el("details", { class: "call branch", open: true }, head, this.body);
    this.node.replaceWith(branch);
    this.node = branch;
    this.head = head;
  }
}

/** The view of the answer. All fields are visible from the start. */
class AnswerCard {
  constructor(output) {
    this.output = output;
    this.node = el("section", { class: "card answer", "aria-label": "Answer" });
    this.reset();
  }

  reset() {
    const { schema, wrapped, empty } = this.output ?? {};
    this.fields = new Map();
    this.value = undefined;
    this.node.classList.remove("is-done", "is-over");
    this.state = el("span", { class: "quiet" });
    this.copy = el("span", {}, copyButton(() => (typeof this.value === "string" ? this.value : JSON.stringify(this.value, null, 2)), "Copy the answer"));
    this.copy.hidden = true;
    this.body = el("dl", { class: "answer-fields" });
    fill(this.node, el("header", {}, el("h2", {}, "Answer"), this.state, this.copy), this.body);
    this.node.hidden = Boolean(empty);
    const names = wrapped || !schema?.properties ? [null] : Object.keys(schema.properties);
    for (const name of names) this.field(name, schema?.properties?.[name]?.description);
  }

  field(name, description) {
    if (this.fields.has(name)) return this.fields.get(name);
    const value = el("dd", {}, el("span", { class: "ghost" }));
    const label = el("dt", { class: name === null ? "sr" : "", title: description }, name === null ? "answer" : words(name));
    put(this.body, label, value);
    const field = { label, value, shown: undefined };
    this.fields.set(name, field);
    return field;
  }

  showPartial(value, completed) {
    this.growing = { value, completed: new Set(completed) };
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw(this.growing.value, this.growing.completed, false);
    });
  }

  draw(value, completed, isDone) {
    if ((value === null || value === undefined) && !isDone) return;
    const hasFields = isRecord(value) && !this.fields.has(null);
    const parts = hasFields ? Object.entries(value) : [[null, value]];
    if (!hasFields && !this.fields.has(null) && value !== undefined && value !== null) {
      fill(this.body);
      this.fields.clear();
    }
    for (const [name, item] of parts) {
      const field = this.field(name);
      const isComplete = isDone || completed.has(name);
      const text = JSON.stringify(item);
      field.label.classList.toggle("is-whole", isComplete);
      field.value.classList.toggle("is-growing", !isComplete && item !== null && item !== undefined);
      if (field.shown === text) continue;
      if ((item === null || item === undefined) && !isComplete) continue;
      field.shown = text;
      fill(field.value, valueView(item));
    }
  }

  refuse() {
    this.state.textContent = "invalid, requested again";
  }

  done(value) {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = undefined;
    this.value = value;
    this.draw(value, new Set(), true);
    this.node.classList.add("is-done");
    this.state.textContent = "";
    this.copy.hidden = false;
  }

  end() {
    this.node.classList.add("is-over");
  }
}
