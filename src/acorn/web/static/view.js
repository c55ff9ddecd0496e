// One run: its waterfall, the details of each row, and an overview.
//
// The page loads the details of a row when the user selects the row. It draws up to 400 rows, so that the browser can
// search them. In larger runs, it draws only the visible rows and implements the search.

import { base, button, chip, copyButton, el, fetchJson, fill, follow, icon, link, notify, put, savedRun, statusView, tabs } from "./dom.js";
import { requestCard } from "./requests.js";
import { className, count, many, money, oneLine, parse, problemsIn, seconds, short, stateOf, stateWords, summary, when } from "./text.js";
import { jsonView, preView, textOrJsonView, textView, valueView } from "./value.js";

const ROW_HEIGHT = 28;
const AXIS_HEIGHT = 38;
const MAX_DRAWN = 400;
const FINISH = "__finish__";

export function viewPage(main, id) {
  const view = new View(id);
  fill(main, view.node);
  return view.load();
}

/** The keys, their descriptions and their actions. */
const KEYS = [
  [["j", "ArrowDown"], "next row", (view) => view.step(1)],
  [["k", "ArrowUp"], "previous row", (view) => view.step(-1)],
  [["ArrowLeft"], "fold, or go to the parent row", (view) => view.foldRow(true)],
  [["ArrowRight"], "unfold", (view) => view.foldRow(false)],
  [["Enter"], "details of the row", (view) => view.openDetail()],
  [["e"], "next error", (view) => view.nextError()],
  [["/"], "find", (view) => view.find.focus()],
  [["n"], "next match", (view) => view.nextHit(1)],
  [["z"], "zoom to the row", (view) => view.zoomRow()],
  [["0"], "show the whole run", (view) => view.zoom(0, view.total)],
  [["f"], "fork before the row", (view) => view.fork()],
  [["c"], "compare with another run", (view) => view.compare()],
  [["?"], "this list", (view) => view.showKeys()],
];

class View {
  constructor(id) {
    this.id = id;
    this.path = `/api/runs/${encodeURIComponent(id)}`;
    this.rows = new Map();
    this.folded = new Set();
    this.hits = new Set();
    this.flat = [];
    this.selected = null;
    this.tab = "content";
    this.total = 0.001;
    this.range = null;
    this.build();
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.fromHash());
    addEventListener("resize", () => this.draw());
    document.addEventListener("theme", () => this.drawStrip());
  }

  build() {
    this.title = el("h1", {}, short(this.id));
    this.status = el("span", { class: "status" });
    this.chips = el("div", { class: "chips" });
    this.acts = el("div", { class: "actions" });
    this.find = el("input", { type: "search", placeholder: "Find   /", "aria-label": "Find in this run" });
    this.matchCount = el("output", { "aria-live": "polite" });
    this.canvas = el("canvas", {});
    this.pane = el("div", { class: "strip-window", hidden: true });
    this.strip = el("div", { class: "strip", role: "img", "aria-label": "Overview of the run. Drag to zoom, press 0 to show all" }, this.canvas, this.pane);
    this.ticks = el("div", { class: "ticks", "aria-hidden": "true" });
    this.body = el("div", { class: "fall-body", role: "tree", "aria-label": "Steps", tabindex: 0 });
    this.fall = el("div", { class: "fall" }, el("div", { class: "axis" }, el("div", { class: "finder" }, this.find, this.matchCount), this.ticks), this.body);
    this.detail = el("section", { class: "detail", "aria-label": "Details", tabindex: -1 }, el("p", { class: "quiet" }, "Select a row."));
    this.waits = el("div", { class: "waits", hidden: true });
    this.node = el("div", { class: "view" },
      el("div", {}, el("div", { class: "view-head" }, this.title, this.status, this.chips, this.acts), this.waits),
      this.strip, el("div", { class: "panes" }, this.fall, this.detail));
    this.fall.addEventListener("scroll", () => this.drawRows());
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest(".vrow");
      if (!row) return;
      const number = Number(row.dataset.row);
      if (event.target.closest(".fold") && this.below.get(number)) this.fold(number, !this.folded.has(number));
      else this.select(number, { opens: true });
    });
    this.find.addEventListener("input", () => this.search());
    this.find.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.nextHit(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") {
        this.find.value = "";
        this.search();
        this.body.focus();
      } else return;
      event.preventDefault();
    });
    this.dragging();
  }

  async load() {
    const run = await fetchJson(`${this.path}/view`);
    if (run.error) {
      fill(this.node, el("div", { class: "wait" }, el("p", { class: "wrong" }, run.error), el("p", {}, link("All runs", "/runs/"))));
      return;
    }
    this.update(run);
    this.body.focus({ preventScroll: true });
    this.fromHash();
    if (this.selected === null && this.flat.length) this.select(this.flat[0].i, { isLinked: false });
    this.version = run.version;
    if (!savedRun && ["running", "queued", "waiting"].includes(run.head.status)) this.listen();
  }

  listen() {
    this.closeStream?.();
    this.closeStream = follow(`${this.path}/rows?after=${this.version}`, (news) => {
      this.version = news.version;
      if (news.rows.length || news.head.status !== this.head.status || idsOf(news.requests) !== this.asked) this.update(news);
      if (this.selected !== null && news.rows.some((row) => row.i === this.selected)) this.showDetail();
      if (!news.over) return;
      this.closeStream();
      if (news.head.status === "waiting") setTimeout(() => this.listen(), 2000);  // Another user may answer the request.
    });
  }

  update({ head, rows, requests }) {
    this.head = head;
    for (const row of rows) this.rows.set(row.i, row);
    const showsAll = !this.range || (this.range[0] === 0 && this.range[1] === this.total);
    this.total = Math.max(0.001, head.seconds ?? 0, ...(rows.length < 5000 ? rows : []).map((row) => row.b ?? row.a ?? 0));
    if (rows.length >= 5000) for (const row of rows) this.total = Math.max(this.total, row.b ?? row.a ?? 0);
    if (showsAll) this.range = [0, this.total];
    this.order();
    this.drawHead(requests);
    this.draw();
  }

  drawHead(requests) {
    const { head } = this;
    document.title = `${className(head.agent) || short(this.id)} · acorn`;
    fill(this.title, summary(head.input, 120) || short(this.id));
    this.title.title = oneLine(head.input, 600);
    const state = stateOf(head);
    statusView(state, state === "waiting" ? "waiting for input" : stateWords(state), this.status);
    const usage = head.usage ?? {};
    const cached = usage.cached_tokens ? `, ${count(usage.cached_tokens)} cached` : "";
    const tokens = (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
    const part = (name, value, title) => value && el("span", { class: "chip", title }, name, el("b", {}, value));
    fill(this.chips,
      !head.own && part("", className(head.agent), head.agent),
      head.forked_from && this.origin(head.forked_from),
      part("time", seconds(head.seconds), head.started && when(head.started)),
      part("steps", String(head.steps ?? 0)),
      part("tokens", count(tokens), `${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out${cached}${usage.is_estimated ? ", estimated" : ""}`),
      part("cost", money(head.cost)), part("", head.model));
    const isActive = !savedRun && ["running", "queued"].includes(head.status);
    const address = encodeURIComponent(this.id);
    fill(this.acts,
      head.own && link([icon("play"), el("span", {}, "Open in Play")], `/?run=${address}`, { class: "button small" }),
      isActive && button("Stop", () => this.act("stop", "POST"), { look: "small", picture: "stop" }),
      head.own && ["stopped", "failed"].includes(head.status) && button("Resume", () => this.act("resume", "POST"), { look: "small", picture: "again" }),
      !savedRun && button("", () => this.compare(), { look: "bare small", picture: "sides", label: "Compare with another run", title: "Compare  c" }),
      head.own && button("", () => this.fork(), { look: "bare small", picture: "branch", label: "Fork", title: "Fork  f" }),
      head.root !== undefined && button("", () => this.python(), { look: "bare small", picture: "code", label: "Show as Python", title: "Show as Python" }),
      !savedRun && el("a", { class: "button bare small", href: `${base}${this.path}/file`, download: "", title: "Save the run as a file", "aria-label": "Save the run as a file" }, icon("save")),
      button("", () => this.showKeys(), { look: "bare small", picture: "keys", label: "Keys", title: "Keys  ?" }),
      !isActive && head.root !== undefined && button("", () => this.remove(), { look: "bare small danger", picture: "bin", label: "Delete this run", title: "Delete this run" }));
    const asked = idsOf(requests);
    this.waits.hidden = !requests.length;
    if (asked === this.asked) return;  // The user may be writing an answer.
    this.asked = asked;
    fill(this.waits, requests.map((each) => requestCard(each, (request, value) => this.answer(request, value))));
  }

  origin({ run, before }) {
    const words = `forked before step ${before}`;
    return el("span", { class: "chip" }, icon("branch"), run && !savedRun ? link(words, `/runs/${encodeURIComponent(run)}`) : words,
      run && !savedRun && link("compare", `/compare?a=${encodeURIComponent(run)}&b=${encodeURIComponent(this.id)}`));
  }

  compare() {
    if (!savedRun) location.assign(`${base}/compare?a=${encodeURIComponent(this.id)}`);
  }

  /** Opens a fork before a model turn, after a tool call (to edit its result), or before a branch. */
  fork() {
    if (!this.head.own) return notify(`The page does not have the agent of this run. Use acorn fork ${short(this.id)} --before 2 --agent ${this.head.target ?? "FILE:CLASS"}`);
    let row = this.rows.get(this.selected), branch = null;
    const isTurn = row?.u === undefined;
    while (row?.u !== undefined) {
      row = this.rows.get(row.u);
      if (row.k === "branch") branch = row.n;
    }
    const step = Math.max(1, (row?.s ?? 0) + (isTurn || branch ? 0 : 1));
    const inside = branch ? `&branch=${encodeURIComponent(branch)}&called=${step}` : "";
    return location.assign(`${base}/fork?run=${encodeURIComponent(this.id)}&before=${step}${inside}`);
  }

  async python() {
    const response = await fetchJson(`${this.path}/python`);
    if (response.error) return notify(response.error);
    const box = el("dialog", { class: "broad", "aria-labelledby": "as-python" }, el("h2", { id: "as-python" }, "Python test"), preView(response.text), el("div", { class: "actions" }, copyButton(() => response.text, "Copy", "Copy"), button("Close", () => box.close())));
    return this.dialog(box);
  }

  async act(what, method) {
    const response = await fetchJson(`${this.path}/${what}`, { method });
    if (response.error) notify(response.error);
    else if (what === "resume") this.listen();
  }

  async answer(request, value) {
    const response = await fetchJson(`/api/requests/${encodeURIComponent(request.id)}`, { method: "POST", body: { value } });
    if (response.error) return response.error;
    notify(response.resumed ? "Run resumed" : `Answered. To resume the run: acorn resume ${short(this.id)} --agent ${this.head.target ?? "FILE:CLASS"}`);
    if (response.resumed) this.listen();
    return null;
  }

  remove() {
    const box = el("dialog", { "aria-labelledby": "ask-delete" }, el("h2", { id: "ask-delete" }, "Delete this run and its branches?"), el("div", { class: "actions" }, button("Delete", async () => {
      const response = await fetchJson(this.path, { method: "DELETE" });
      box.close();
      if (response.error) notify(response.error);
      else location.assign(`${base}/runs/`);
    }, { look: "danger" }), button("Cancel", () => box.close())));
    this.dialog(box);
  }

  dialog(box) {
    document.body.append(box);
    box.addEventListener("close", () => box.remove());
    box.showModal();
  }

  showKeys() {
    if (document.querySelector("dialog")) return;
    const names = { ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→" };
    const box = el("dialog", { "aria-labelledby": "the-keys" }, el("h2", { id: "the-keys" }, "Keys"),
      el("div", { class: "key-list" }, KEYS.map(([keys, words]) => [el("span", {}, keys.map((each) => el("kbd", {}, names[each] ?? each))), el("span", {}, words)])),
      button("Close", () => box.close()));
    this.dialog(box);
  }

  // Order, folding, selection

  order() {
    this.below = new Map();
    const tops = [];
    for (const row of [...this.rows.values()].sort((a, b) => a.i - b.i)) {
      if (row.u === undefined) tops.push(row);
      else if (this.below.has(row.u)) this.below.get(row.u).push(row);
      else this.below.set(row.u, [row]);
    }
    this.flat = [];
    this.at = new Map();
    const stack = tops.reverse().map((row) => [row, 0]);
    while (stack.length) {
      const [row, depth] = stack.pop();
      row.depth = depth;
      this.at.set(row.i, this.flat.length);
      this.flat.push(row);
      const below = this.below.get(row.i);
      if (below && !this.folded.has(row.i)) for (let at = below.length - 1; at >= 0; at--) stack.push([below[at], depth + 1]);
    }
    if (!this.find.value) this.matchCount.textContent = many(this.rows.size, "row");
  }

  fold(number, folds) {
    if (folds) this.folded.add(number);
    else this.folded.delete(number);
    this.order();
    this.draw();
  }

  foldRow(folds) {
    const row = this.rows.get(this.selected);
    if (!row) return;
    if (this.below.has(row.i) && this.folded.has(row.i) !== folds) this.fold(row.i, folds);
    else if (folds && row.u !== undefined) this.select(row.u);
  }

  step(by) {
    const at = this.selected === null ? -1 : (this.at.get(this.selected) ?? -1);
    const next = this.flat[Math.min(this.flat.length - 1, Math.max(0, at + by))];
    if (next) this.select(next.i);
  }

  nextError() {
    const errors = this.flat.filter((row) => row.x);
    const at = this.at.get(this.selected) ?? -1;
    const next = errors.find((row) => this.at.get(row.i) > at) ?? errors[0];
    if (next) this.select(next.i);
    else notify("No errors");
  }

  fromHash() {
    const match = /^#row-(\d+)$/.exec(location.hash);
    if (match && this.rows.has(Number(match[1]))) this.select(Number(match[1]), { centre: true, opens: true });
  }

  select(number, { centre = false, opens = false, isLinked = true } = {}) {
    let unfolded = false;
    for (let row = this.rows.get(number); row?.u !== undefined; row = this.rows.get(row.u)) unfolded = this.folded.delete(row.u) || unfolded;
    if (unfolded) this.order();
    this.selected = number;
    if (isLinked) history.replaceState(null, "", `#row-${number}`);
    const top = (this.at.get(number) ?? 0) * ROW_HEIGHT;
    const { scrollTop, clientHeight } = this.fall;
    const visible = clientHeight - AXIS_HEIGHT;
    if (centre) this.fall.scrollTop = top - visible / 2;
    else if (top < scrollTop) this.fall.scrollTop = top;
    else if (top + ROW_HEIGHT > scrollTop + visible) this.fall.scrollTop = top + ROW_HEIGHT - visible;
    this.drawRows(unfolded);
    this.markRow();
    this.showDetail();
    if (opens) this.detail.classList.add("is-open");
  }

  /** Marks the selected row without drawing the rows again. */
  markRow() {
    for (const each of this.body.querySelectorAll("[aria-selected='true']")) each.setAttribute("aria-selected", "false");
    const row = document.getElementById(`row-${this.selected}`);
    if (!row) return;
    row.setAttribute("aria-selected", "true");
    this.body.setAttribute("aria-activedescendant", row.id);
  }

  openDetail() {
    if (this.selected === null) return;
    this.detail.classList.add("is-open");
    this.detail.focus();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input, textarea, select")) return;
    if (event.key === "Escape") {
      this.detail.classList.remove("is-open");
      this.body.focus();
      return;
    }
    if (event.key === "Enter" && event.target.closest("button, a, summary")) return;
    if (event.target.closest(".detail") && event.key.startsWith("Arrow")) return;
    const known = KEYS.find(([keys]) => keys.includes(event.key));
    if (!known) return;
    event.preventDefault();
    known[2](this);
  }

  // Search

  search() {
    const text = this.find.value.trim().toLowerCase();
    clearTimeout(this.searching);
    this.asking?.abort();
    this.hits = new Set();
    if (!text) {
      this.matchCount.textContent = many(this.rows.size, "row");
      globalThis.CSS.highlights?.delete("found");
      this.drawRows(true);
      return;
    }
    for (const row of this.rows.values()) if (row.n.toLowerCase().includes(text) || row.p?.toLowerCase().includes(text)) this.hits.add(row.i);
    this.showHits();
    this.drawRows(true);
    this.searching = setTimeout(async () => {
      this.asking = new AbortController();
      try {
        const response = await fetchJson(`${this.path}/find?q=${encodeURIComponent(text)}`, { signal: this.asking.signal });
        for (const number of response.rows ?? []) this.hits.add(number);
        this.showHits();
        this.drawRows(true);
      } catch {
        // The user changed the search text.
      }
    }, 180);
  }

  showHits() {
    this.matchCount.textContent = this.hits.size ? many(this.hits.size, "row") : "none";
  }

  nextHit(by) {
    const order = this.fullOrder();
    const hits = order.filter((number) => this.hits.has(number));
    if (!hits.length) return;
    const at = order.indexOf(this.selected);
    const next = by > 0 ? hits.find((number) => order.indexOf(number) > at) ?? hits[0] : hits.findLast((number) => order.indexOf(number) < at) ?? hits.at(-1);
    this.select(next, { centre: true });
    this.matchCount.textContent = `${hits.indexOf(next) + 1} of ${hits.length}`;
  }

  fullOrder() {
    if (!this.folded.size) return this.flat.map((row) => row.i);
    const folded = this.folded;
    this.folded = new Set();
    this.order();
    const ids = this.flat.map((row) => row.i);
    this.folded = folded;
    this.order();
    return ids;
  }

  // Drawing

  draw() {
    this.drawAxis();
    this.drawRows(true);
    this.drawStrip();
  }

  drawAxis() {
    const [from, to] = this.range;
    const step = nice((to - from) / 4);
    const marks = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const mark = el("span", {}, at === 0 ? "0" : seconds(at));
      mark.style.left = `${((at - from) / (to - from)) * 100}%`;
      if ((at - from) / (to - from) < 0.94) marks.push(mark);
    }
    fill(this.ticks, marks);
  }

  drawRows(again = false) {
    const isWindowed = this.flat.length > MAX_DRAWN;
    this.body.classList.toggle("is-windowed", isWindowed);
    let first = 0, last = this.flat.length;
    if (isWindowed) {
      const { scrollTop, clientHeight } = this.fall;
      first = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - 8);
      last = Math.min(this.flat.length, Math.ceil((scrollTop + clientHeight) / ROW_HEIGHT) + 8);
      this.body.style.height = `${this.flat.length * ROW_HEIGHT}px`;
    } else {
      this.body.style.height = "";
      if (!again) return;
    }
    if (!again && this.drawn?.[0] === first && this.drawn[1] === last) return;
    this.drawn = [first, last];
    const shown = [];
    for (let at = first; at < last; at++) shown.push(this.line(this.flat[at], at, isWindowed));
    fill(this.body, shown);
    if (this.selected !== null && this.at.has(this.selected)) this.body.setAttribute("aria-activedescendant", `row-${this.selected}`);
  }

  line(row, at, isWindowed) {
    const below = this.below.has(row.i);
    const [from, to] = this.range;
    const start = row.a ?? null;
    const isOpen = start !== null && row.b === undefined;
    const end = row.b ?? this.total;
    const lane = el("div", { class: "lane" });
    if (start !== null && end >= from && start <= to) {
      const left = Math.max(0, ((start - from) / (to - from)) * 100);
      const right = Math.min(100, ((end - from) / (to - from)) * 100);
      const beam = el("span", { class: isOpen && this.isActive() ? "beam is-open" : "beam" });
      beam.style.left = `${left}%`;
      beam.style.width = `${Math.max(0, right - left)}%`;
      const took = el("span", { class: "took" }, isOpen ? "" : end > start ? seconds(end - start) : "");
      if (right > 88 && left > 14) took.style.right = `${100 - left}%`;
      else took.style.left = `${Math.min(right, 100)}%`;
      put(lane, beam, took);
    }
    const what = el("div", { class: "what" }, el("span", { class: "fold" }, below && icon("right")), el("span", { class: "square" }), el("span", { class: "vname" }, row.n), row.s && ["model", "answer"].includes(row.k) && el("span", { class: "step" }, row.s), el("span", { class: "peek" }, row.p && oneLine(row.p)));
    what.style.paddingLeft = `${8 + Math.min(row.depth, 12) * 16}px`;
    const node = el("div", {
      class: `vrow k-${row.k}${this.isKept(row) ? " is-kept" : ""}${row.x ? " is-bad-row" : ""}${this.hits.has(row.i) ? " is-hit" : ""}`,
      id: `row-${row.i}`,
      role: "treeitem",
      "data-row": row.i,
      "aria-level": row.depth + 1,
      "aria-selected": row.i === this.selected ? "true" : "false",
      "aria-expanded": below ? String(!this.folded.has(row.i)) : undefined,
      "aria-label": `${row.n}${row.x ? ", failed" : ""}${row.p ? `: ${oneLine(row.p, 80)}` : ""}`,
    }, what, lane);
    if (isWindowed) node.style.top = `${at * ROW_HEIGHT}px`;
    return node;
  }

  /** Returns whether a row of a fork was copied from the original run. */
  isKept(row) {
    const before = this.head.forked_from?.before;
    let top = row;
    while (before && top.u !== undefined) top = this.rows.get(top.u);
    return before !== undefined && top.s !== undefined && top.s < before;
  }

  isActive() {
    return ["running", "queued"].includes(this.head.status);
  }

  // The overview

  drawStrip() {
    const { clientWidth: width, clientHeight: high } = this.strip;
    if (!width || !this.range) return;
    const scale = devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = high * scale;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const hues = new Map();
    const hue = (row) => {
      const key = row.x ? "is-bad-row" : `k-${row.k}`;
      if (!hues.has(key)) {
        const probe = el("span", { class: `square ${key}` });
        this.strip.append(probe);
        hues.set(key, getComputedStyle(probe).backgroundColor);
        probe.remove();
      }
      return hues.get(key);
    };
    const thick = Math.max(1, Math.min(5, (high - 8) / this.flat.length));
    this.flat.forEach((row, at) => {
      if (row.a === undefined) return;
      const left = (row.a / this.total) * width;
      const right = ((row.b ?? this.total) / this.total) * width;
      pen.fillStyle = hue(row);
      pen.fillRect(left, 4 + ((high - 8 - thick) * at) / Math.max(1, this.flat.length - 1), Math.max(1.5, right - left), thick);
    });
    const [from, to] = this.range;
    this.pane.hidden = from === 0 && to === this.total;
    this.pane.style.left = `${(from / this.total) * 100}%`;
    this.pane.style.width = `${((to - from) / this.total) * 100}%`;
  }

  dragging() {
    let began = null;
    const at = (event) => {
      const box = this.strip.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * this.total;
    };
    this.strip.addEventListener("pointerdown", (event) => {
      began = at(event);
      this.strip.setPointerCapture(event.pointerId);
    });
    this.strip.addEventListener("pointermove", (event) => {
      if (began === null) return;
      const now = at(event);
      if (Math.abs(now - began) > this.total / 200) this.zoom(Math.min(began, now), Math.max(began, now));
    });
    this.strip.addEventListener("pointerup", () => {
      began = null;
    });
    this.strip.addEventListener("dblclick", () => this.zoom(0, this.total));
  }

  zoom(from, to) {
    this.range = [Math.max(0, from), Math.max(from + this.total / 5000, Math.min(this.total, to))];
    this.draw();
  }

  zoomRow() {
    const row = this.rows.get(this.selected);
    if (row?.a === undefined) return;
    const end = row.b ?? this.total;
    const room = Math.max((end - row.a) * 0.15, this.total / 500);
    this.zoom(row.a - room, end + room);
  }

  // Details

  async showDetail() {
    const number = this.selected;
    const row = this.rows.get(number);
    if (!row) return;
    const names = [["content", "Content"], ...(["model", "answer"].includes(row.k) ? [["sent", "Messages sent"]] : []), ["raw", "Raw"]];
    if (!names.some(([name]) => name === this.tab)) this.tab = "content";
    const tabRow = tabs(names, (name) => {
      this.tab = name;
      this.showTab(number);
    });
    this.holder = el("div", { role: "tabpanel", id: `pane-${this.tab}`, "aria-labelledby": `tab-${this.tab}`, tabindex: 0 });
    const facts = [
      this.isKept(row) && chip("kept"), row.s && chip(`step ${row.s}`), row.a !== undefined && chip(`at ${seconds(row.a)}`), row.b > row.a && chip(`took ${seconds(row.b - row.a)}`),
      row.t && !this.isKept(row) && chip(`${count(row.t[0])} in, ${count(row.t[1])} out`), row.c !== undefined && chip(money(row.c))];
    const head = el("div", { class: `detail-head k-${row.k}${row.x ? " is-bad-row" : ""}` }, el("h2", {}, row.n), facts,
      copyButton(() => `${location.href.split("#")[0]}#row-${number}`, "Copy the link to this row"),
      button("", () => this.detail.classList.remove("is-open"), { look: "bare small close", picture: "cross", label: "Close" }));
    fill(this.detail, head, tabRow.node, this.holder);
    tabRow.choose(this.tab);
    await this.showTab(number);
  }

  async showTab(number) {
    const holder = this.holder;
    holder.id = `pane-${this.tab}`;
    holder.setAttribute("aria-labelledby", `tab-${this.tab}`);
    const tab = this.tab;
    const response = await fetchJson(`${this.path}/${tab === "sent" ? "sent" : "details"}?row=${number}`);
    // Another row may be selected by now.
    if (this.selected !== number || this.holder !== holder || this.tab !== tab) return;
    if (response.error) fill(holder, el("p", { class: "quiet" }, response.error));
    else if (tab === "sent") fill(holder, sentView(response));
    else if (tab === "raw") fill(holder, jsonView({ entries: response.entries, results: response.results }));
    else fill(holder, contentView(this.rows.get(number), response));
    if (this.find.value.trim()) mark(holder, this.find.value.trim());
  }
}

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return [1, 2, 5, 10].find((each) => each * power >= step) * power;
}

/** Highlights the search text in a pane. */
function mark(holder, text) {
  if (!globalThis.Highlight) return;
  const ranges = [];
  const walk = document.createTreeWalker(holder, NodeFilter.SHOW_TEXT);
  const wanted = text.toLowerCase();
  while (walk.nextNode() && ranges.length < 500) {
    const data = walk.currentNode.data.toLowerCase();
    for (let at = data.indexOf(wanted); at >= 0 && ranges.length < 500; at = data.indexOf(wanted, at + wanted.length)) {
      const range = new Range();
      range.setStart(walk.currentNode, at);
      range.setEnd(walk.currentNode, at + wanted.length);
      ranges.push(range);
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

const idsOf = (requests) => JSON.stringify(requests.map((each) => each.id));

const part = (title, ...nodes) => [el("h3", {}, title), ...nodes];

function textOf(content) {
  return typeof content === "string" ? content : content === null || content === undefined ? "" : JSON.stringify(content, null, 2);
}

function messageView(message, isFresh) {
  const calls = (message.tool_calls ?? []).map((each) => [el("p", { class: "cap" }, `calls ${each.function?.name ?? ""}`), textOrJsonView(each.function?.arguments ?? "")]);
  const text = textOf(message.content);
  return el("article", { class: isFresh ? "message is-fresh" : "message" }, el("header", {}, message.role ?? "message", message.tool_call_id && el("span", {}, message.tool_call_id)), text && preView(text), calls);
}

function sentView({ messages, model, exact, count: amount, forced }) {
  const title = exact ? `${many(amount, "message")} to ${model}` : `${many(amount, "message")} were sent to ${model}. They were made from this history`;
  const lastTurn = messages.findLastIndex((each) => each.role === "assistant");
  return [el("p", { class: "quiet" }, title, forced && `. The answer was forced (${forced})`), messages.map((each, at) => messageView(each, at > lastTurn && lastTurn >= 0))];
}

function contentView(row, { entries, results, arguments: args }) {
  const nodes = entries.flatMap((entry) => SHOWN[entry.entry]?.(entry, row) ?? []);
  const isCall = args !== null && row.k !== "answer";
  if (isCall && !entries.some((entry) => entry.entry === "ToolStarted")) nodes.unshift(...part("Arguments", textOrJsonView(args)));
  const returned = entries.findLast((entry) => entry.entry === "ToolFinished" || entry.entry === "BranchFinished");
  for (const [, content, form] of results) {
    if (row.k === "answer") {
      if (form === "error") nodes.push(...part("Invalid", problemsView(textOf(content))));
    } else if (!returned || textOf(returned.content) !== textOf(content)) nodes.push(...part(form === "skipped" ? "Not called" : "Result for the model", textOrJsonView(content)));
  }
  const nothing = row.k === "model" && row.x ? "The model did not answer. See the row of the error." : "No details.";
  return nodes.length ? nodes : el("p", { class: "quiet" }, nothing);
}

function problemsView(text) {
  const problems = problemsIn(text);
  return problems.length ? el("ul", { class: "values" }, problems.map((each) => el("li", {}, el("code", {}, each.path || "answer"), ` must be ${each.expected}, got ${oneLine(each.received, 200)}`))) : preView(text);
}

const SHOWN = {
  RunStarted: (entry) => [...part("Input", valueView(entry.input)), ...part("Agent", el("p", { class: "mono" }, entry.module))],
  MessagesAdded: (entry) => [
    ...(entry.inherited ? part("From the parent run", el("p", { class: "quiet" }, many(entry.inherited, "message"))) : []),
    ...part("Messages", entry.messages.slice(entry.inherited).map((each) => messageView(each))),
  ],
  ModelResponded: (entry) => [
    ...(entry.reasoning ? part("Reasoning", textView(entry.reasoning, "thought")) : []),
    ...(entry.refusal ? part("Refused", preView(entry.refusal)) : []),
    ...(entry.content ? part("Text", preView(entry.content)) : []),
    ...entry.calls.flatMap(([, name, args]) => part(name === FINISH ? "Answer" : `Calls ${name}`, name === FINISH ? answerView(args) : textOrJsonView(args))),
    ...part("Figures", el("dl", { class: "facts" }, [
      ["model", entry.model], ["stopped by", entry.stop_reason], ["in", many(entry.usage.input_tokens, "token")], ["cached", entry.usage.cached_tokens && many(entry.usage.cached_tokens, "token")],
      ["out", many(entry.usage.output_tokens, "token")], ["reasoning", entry.usage.reasoning_tokens && many(entry.usage.reasoning_tokens, "token")], ["cost", money(entry.cost)],
      ["counted by", entry.usage.is_estimated && "an estimate"], ["requests", entry.attempts > 1 && String(entry.attempts)],
    ].filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))),
    ...(entry.fallbacks.length ? part("Failed models", el("ul", { class: "values" }, entry.fallbacks.map((each) => el("li", {}, `${each[0]}: ${each[2]}`)))) : []),
  ],
  ToolStarted: (entry) => part("Arguments", textOrJsonView(entry.arguments)),
  ToolFinished: (entry) => [
    ...part(entry.error === null ? "Result" : "Error", textOrJsonView(entry.error ?? entry.content)),
    ...(entry.traceback ? part("Traceback", preView(entry.traceback)) : []),
  ],
  BranchStarted: (entry) => part("Branch", el("p", { class: "mono" }, entry.branch)),
  BranchFinished: (entry) => part(entry.error === null ? "Result" : "Error", textOrJsonView(entry.error ?? entry.content)),
  InputRequested: (entry) => [...part(entry.kind === "approval" ? "Approval" : "Question", preView(entry.question)), ...(entry.choices ? part("Choices", valueView(entry.choices)) : []), ...part("Arguments", textOrJsonView(entry.arguments))],
  InputReceived: (entry) => part("Answer", textOrJsonView(entry.answer)),
  HistoryEdited: (entry) => part(`Replaced ${many(entry.removed, "message")}`, entry.messages.map((each) => messageView(each))),
  Compacted: (entry) => part("Summary", preView(entry.summary || "none")),
  RunFailed: (entry) => part("Error", preView(entry.error)),
  RunInterrupted: (entry) => part("Stopped by", preView(entry.error)),
  RunFinished: (entry) => (entry.form === "error" ? part("Not finished", preView(entry.content)) : part("Output", valueView(entry.form === "json" ? (parse(entry.content) ?? entry.content) : entry.content))),
};

function answerView(args) {
  const value = parse(args);
  return value === undefined ? preView(args) : jsonView(value);
}
