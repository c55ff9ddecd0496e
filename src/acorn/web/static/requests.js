// Requests for human input.

import { button, chip, el, icon, put } from "./dom.js";
import { isRecord, parse } from "./text.js";

/** Returns a form for the answer to one request. */
export function requestCard(request, answer) {
  const title = request.kind === "approval" ? `Approve the call of ${request.tool}?` : "Question of the agent";
  const id = `request-${request.id}`;
  const wrong = el("p", { class: "wrong", role: "alert", hidden: true });
  const send = async (value) => {
    for (const each of card.querySelectorAll("button, textarea")) each.disabled = true;
    const failure = await answer(request, value);
    if (!failure) return;
    for (const each of card.querySelectorAll("button, textarea")) each.disabled = false;
    wrong.hidden = false;
    wrong.textContent = failure;
  };
  const card = el("section", { class: "card request", "aria-labelledby": id }, el("header", {}, icon("person"), el("h2", { id }, title), request.branch && chip(request.branch, "", "branch")));
  if (request.kind === "question") {
    put(card, el("p", { class: "question" }, request.question));
    const text = el("textarea", { rows: 2, "aria-label": "Your answer", placeholder: "Your answer" });
    const choices = request.choices ?? [];
    if (choices.length) put(card, el("div", { class: "actions" }, choices.map((each) => button(each, () => send(each)))));
    put(card, el("div", { class: "field" }, text), el("div", { class: "actions" }, button("Answer", () => text.value.trim() && send(text.value), { look: "primary" })));
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && text.value.trim()) {
        event.stopPropagation();
        send(text.value);
      }
    });
  } else {
    const args = el("textarea", { class: "code", rows: 3, "aria-label": "Arguments", spellcheck: "false" });
    const before = JSON.stringify(request.arguments, null, 2);
    args.value = before;
    const reason = el("input", { type: "text", "aria-label": "Reason", placeholder: "Reason, if you reject it" });
    const approve = () => {
      if (args.value.trim() === before.trim()) return send(true);
      const changed = parse(args.value);
      if (!isRecord(changed)) {
        wrong.hidden = false;
        wrong.textContent = "The arguments must be a JSON object.";
        return undefined;
      }
      return send({ approved: true, arguments: changed });
    };
    put(card, el("p", { class: "hint" }, "You can change the arguments before you approve the call."), el("div", { class: "field" }, args), el("div", { class: "field" }, reason));
    put(card, el("div", { class: "actions" }, button("Approve", approve, { look: "primary", picture: "check" }), button("Reject", () => send({ approved: false, reason: reason.value.trim() || null }), { picture: "cross" })));
  }
  put(card, wrong);
  return card;
}
