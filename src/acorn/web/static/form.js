// A form for a JSON Schema.
//
// A field is `{ node, get, set, mark, at }`: `get` returns undefined if nothing was entered, `mark` shows a problem, and
// `at` finds the field of a path. `fieldOf` chooses the kind of a field.

import { button, el, fill, icon, put } from "./dom.js";
import { fromJson, parse, unrounded, words } from "./text.js";

let counter = 0;
const newId = () => `field-${++counter}`;

export function makeForm(shape) {
  const top = shape.schema;
  const body = objectField(resolve(top, top), top, { bare: true, only: shape.wrapped ? "input" : null });
  return {
    node: body.node,
    read: () => body.get() ?? {},
    fill: (value) => body.set(value ?? {}),
    clear: () => body.clearMarks(),
    /** Displays problems at their fields, and returns the problems without a field. */
    mark(problems) {
      body.clearMarks();
      let first = null;
      const unplaced = [];
      for (const problem of problems) {
        const parts = problem.path === "" ? [] : problem.path.split(".");
        const field = body.at(parts);
        if (!field || field === body) unplaced.push(problem);
        else {
          field.mark(problem.received === "missing" ? "Required" : problem.message);
          first ??= field;
        }
      }
      first?.focus();
      return unplaced;
    },
    focus: () => body.focus(),
    /** Waits until the files are read, and returns whether all of them can be sent. */
    async isReady() {
      const zones = [...body.node.querySelectorAll(".drop")].filter((each) => each.checkVisibility());
      while (zones.some((each) => each.reading)) await Promise.all(zones.map((each) => each.reading));
      const unsent = zones.filter((each) => each.unsent());
      unsent[0]?.querySelector("input").focus();
      return !unsent.length;
    },
  };
}

// Schemas

function resolve(schema, top) {
  let result = schema ?? {};
  for (let hops = 0; result.$ref && hops < 20; hops++) {
    const { $ref, ...own } = result;
    let target = top;
    for (const part of $ref.split("/").slice(1)) target = target?.[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")];
    result = { ...(target ?? {}), ...own };
  }
  const kinds = Array.isArray(result.type) ? result.type : null;
  if (kinds && kinds.includes("null") && kinds.length === 2) return { ...result, type: kinds.find((kind) => kind !== "null"), nullable: true };
  const members = result.anyOf ?? result.oneOf;
  if (members) {
    const real = members.filter((each) => each.type !== "null");
    if (real.length < members.length && real.length === 1) {
      const { anyOf, oneOf, ...own } = result;
      return { ...resolve(real[0], top), ...own, nullable: true };
    }
    if (real.length < members.length) return { ...result, anyOf: real, oneOf: undefined, nullable: true };
  }
  return result;
}

function choicesOf(schema, top) {
  if (schema.enum) return schema.enum;
  if (schema.const !== undefined) return [schema.const];
  const members = schema.anyOf ?? schema.oneOf;
  const options = members?.map((each) => resolve(each, top));
  return options?.length && options.every((each) => each.const !== undefined) ? options.map((each) => each.const) : null;
}

function fieldOf(schema, top, about) {
  const resolved = resolve(schema, top);
  const choices = choicesOf(resolved, top)?.filter((each) => each !== null);
  const members = resolved.anyOf ?? resolved.oneOf;
  if (choices && choices.length === 1 && !resolved.nullable) return constField(choices[0]);
  if (choices) return choiceField(resolved, choices, about);
  if (about.depth > 6) return jsonField(resolved, about);
  if (members) return unionField(resolved, members, top, about);
  if (resolved.type === "boolean") return resolved.nullable ? choiceField(resolved, [true, false], about) : switchField(resolved, about);
  if (resolved.type === "integer" || resolved.type === "number") return numberField(resolved, about);
  if (resolved.type === "string" && resolved.format?.startsWith("acorn-")) return mediaField(resolved, about);
  if (resolved.type === "string") return textField(resolved, about);
  if (resolved.type === "array" && resolved.items && !resolved.prefixItems) return rowsField(resolved, top, about);
  if (resolved.type === "object" && resolved.properties) return groupField(resolved, top, about);
  if (resolved.type === "object" && resolved.additionalProperties && typeof resolved.additionalProperties === "object") return pairsField(resolved, top, about);
  return jsonField(resolved, about);
}

// The common parts of all fields: label, description and problem

function labeled(control, about, schema, { label = true, hint = limits(schema), wraps } = {}) {
  const id = control.id || (control.id = newId());
  const note = [schema.description, hint].filter(Boolean).join(", ");
  const hintNode = note && el("p", { class: "hint", id: `${id}-hint` }, note);
  const wrong = el("p", { class: "wrong", id: `${id}-wrong`, hidden: true });
  const optional = !about.required && el("span", { class: "optional" }, "optional");
  const head = label && about.label && (wraps
    ? el("span", { class: "label", id: `${id}-label` }, about.label, optional)
    : el("label", { class: "label", for: id }, about.label, optional));
  const described = [hintNode && `${id}-hint`, `${id}-wrong`].filter(Boolean).join(" ");
  control.setAttribute("aria-describedby", described);
  if (wraps && about.label) control.setAttribute("aria-labelledby", `${id}-label`);
  if (!about.label) control.setAttribute("aria-label", about.name ?? "value");
  const node = el("div", { class: "field" }, head, control, hintNode, wrong);
  return {
    node,
    mark(message) {
      wrong.hidden = !message;
      fill(wrong, message && icon("warn"), message && sentence(message));
      node.classList.toggle("is-wrong", Boolean(message));
      if (message) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
    },
    focus: () => (control.matches("input, textarea, select") ? control : control.querySelector("input, textarea, select, button"))?.focus(),
    clearMarks() {
      this.mark("");
    },
    at() {
      return this;
    },
  };
}

function sentence(message) {
  const text = message.replace(/^`[^`]*` /, "").replaceAll("`", "");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function limits(schema) {
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const high = schema.maximum ?? schema.exclusiveMaximum;
  if (low !== undefined && high !== undefined) return `from ${low} to ${high}`;
  if (low !== undefined) return `at least ${low}`;
  if (high !== undefined) return `at most ${high}`;
  if (schema.maxLength !== undefined) return `at most ${schema.maxLength} characters`;
  return "";
}

// The kinds of fields

const INPUTS = { date: "date", time: "time", "date-time": "datetime-local", email: "email", uri: "url", password: "password" };

function textField(schema, about) {
  const kind = INPUTS[schema.format];
  const example = schema.examples?.[0];
  const control = kind
    ? el("input", { type: kind, step: kind === "time" || kind === "datetime-local" ? 1 : undefined, autocomplete: "off" })
    : el("textarea", { rows: 1, placeholder: typeof example === "string" ? example : undefined, spellcheck: "true" });
  const field = labeled(control, about, schema);
  let emptyValue;
  control.addEventListener("input", () => {
    // An emptied field is null if the schema allows null, otherwise "".
    emptyValue = schema.default && !kind && !schema.nullable ? "" : undefined;
  });
  field.get = () => (control.value === "" ? emptyValue : control.value);
  field.set = (value) => {
    const text = String(unrounded(value) ?? "");
    emptyValue = value === "" ? "" : undefined;
    if (kind) control.type = kind;
    control.value = text;
    if (control.value || !kind) return;
    // The control cannot display a time with a zone or a date in words.
    control.type = "text";
    control.value = text;
  };
  if (kind === "datetime-local" || kind === "time") {
    const { mark } = field;
    field.mark = (message) => {
      if (message) control.type = "text";  // The zone may be missing, which only a text field accepts.
      mark.call(field, message);
    };
  }
  if (typeof schema.default === "string") field.set(schema.default);
  return field;
}

const ACCEPTED = { "acorn-image": "image/*", "acorn-audio": "audio/*" };
const MAX_FILE = 20_000_000;
const size = (bytes) => (bytes < 999_500 ? `${Math.ceil(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** A field for an image, audio or file, or its URL. */
function mediaField(schema, about) {
  const id = newId();
  const file = el("input", { type: "file", class: "sr", id, accept: ACCEPTED[schema.format] });
  const address = el("input", { type: "url", placeholder: "or a URL", "aria-label": `URL of ${about.name}` });
  const shown = el("span", { class: "dropped" }, "Drop or choose a file");
  const clear = button("", () => take(null), { look: "bare small", picture: "cross", label: `Remove ${about.name}` });
  clear.hidden = true;
  const zone = el("div", { class: "drop" }, file, el("label", { for: id }, icon("save"), shown), clear, address);
  const field = labeled(zone, about, schema, { wraps: true });
  let data, problem = "";
  /** Displays a problem of the chosen file, and returns whether there is one. */
  zone.unsent = () => {
    field.mark(problem);
    return Boolean(problem);
  };
  const show = (caption, why = "") => {
    data = undefined;
    zone.reading = null;
    problem = why;
    field.mark(why);
    clear.hidden = !caption;
    address.hidden = Boolean(caption);
    zone.querySelector("img")?.remove();
    fill(shown, caption || "Drop or choose a file");
  };
  const setData = (url, caption, isImage) => {
    show(caption);
    data = url;
    if (isImage) zone.prepend(el("img", { src: data, alt: caption }));
  };
  const take = (chosen) => {
    if (!chosen) file.value = "";
    const caption = chosen && `${chosen.name} · ${size(chosen.size)}`;
    show(caption, chosen?.size > MAX_FILE ? "The file may have at most 20 MB." : "");
    if (!chosen || problem) return;
    const reader = new FileReader();
    reader.addEventListener("loadend", () => {  // This runs before `isReady` continues.
      if (zone.reading !== reading) return;  // Another file was chosen.
      if (reader.error) show(caption, "The file cannot be read.");
      else setData(reader.result, caption, chosen.type.startsWith("image/"));
    });
    const reading = new Promise((done) => reader.addEventListener("loadend", done));
    zone.reading = reading;
    reader.readAsDataURL(chosen);
  };
  file.addEventListener("change", () => file.files[0] && take(file.files[0]));
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("is-over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("is-over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("is-over");
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  field.get = () => data ?? (address.value.trim() || undefined);
  field.set = (value) => {
    take(null);
    const text = String((typeof value === "string" ? value : value?.url) ?? "");
    const [, kind, data64] = /^data:([^;,]*)[^,]*,(.*)$/s.exec(text) ?? [];
    address.value = /^https?:/.test(text) ? text : "";
    if (data64 !== undefined) setData(text, `${kind || "a file"} · ${size(data64.length * 0.75)}`, kind.startsWith("image/"));
    // The page has no copy of the file. Only the user may decide to omit the file.
    else if (value && !address.value) show("a file of an earlier run", "Choose the file again or remove it.");
  };
  return field;
}

function numberField(schema, about) {
  const control = el("input", {
    type: "number",
    inputmode: schema.type === "integer" ? "numeric" : "decimal",
    step: schema.multipleOf ?? (schema.type === "integer" ? 1 : "any"),
    min: schema.minimum,
    max: schema.maximum,
    placeholder: schema.examples?.[0] ?? schema.default,
  });
  const field = labeled(control, about, schema);
  field.get = () => (control.value === "" ? undefined : parse(control.value) ?? Number(control.value));
  field.set = (value) => {
    control.value = unrounded(value) ?? "";
  };
  if (schema.default !== undefined) field.set(schema.default);
  return field;
}

function switchField(schema, about) {
  const id = newId();
  const box = el("input", { type: "checkbox", role: "switch", id });
  box.checked = schema.default === true;
  const wrong = el("p", { class: "wrong", hidden: true });
  const node = el("div", { class: "field" }, el("label", { class: "switch", for: id }, box, el("span", { class: "label" }, about.label || about.name)), schema.description && el("p", { class: "hint" }, schema.description), wrong);
  let isTouched = false;
  box.addEventListener("change", () => {
    isTouched = true;
  });
  return {
    node,
    get: () => (isTouched || about.required || box.checked !== (schema.default === true) ? box.checked : schema.default === undefined ? undefined : box.checked),
    set: (value) => {
      box.checked = value === true;
      isTouched = value !== undefined;
    },
    mark: (message) => {
      wrong.hidden = !message;
      fill(wrong, message && sentence(message));
    },
    clearMarks() {
      this.mark("");
    },
    focus: () => box.focus(),
    at() {
      return this;
    },
  };
}

function constField(value) {
  return { node: el("div", { hidden: true }), get: () => value, set() {}, mark() {}, clearMarks() {}, focus() {}, at() { return null; } };
}

function choiceField(schema, choices, about) {
  const shown = choices.map((each) => (typeof each === "string" ? each : JSON.stringify(each)));
  const isShort = choices.length <= 4 && shown.join("").length <= 36;
  const nothing = !about.required && schema.default === undefined;
  let control, get, set;
  if (isShort) {
    const name = newId();
    const options = nothing || schema.nullable ? [undefined, ...choices] : choices;
    const radios = options.map((each) => el("input", { type: "radio", name }));
    control = el("div", { class: "segments", role: "radiogroup" }, radios.map((radio, at) => el("label", {}, radio, el("span", {}, options[at] === undefined ? "–" : shown[choices.indexOf(options[at])]))));
    get = () => options[radios.findIndex((radio) => radio.checked)];
    set = (value) => radios.forEach((radio, at) => {
      radio.checked = options[at] === (value ?? undefined);
    });
  } else {
    const options = [undefined, ...choices];
    control = el("select", {}, options.map((each, at) => el("option", { value: at }, each === undefined ? (about.required ? "Choose …" : "–") : shown[at - 1])));
    get = () => options[control.selectedIndex];
    set = (value) => {
      control.selectedIndex = Math.max(0, options.indexOf(value ?? undefined));
    };
  }
  const field = labeled(control, about, schema, { wraps: isShort });
  set(schema.default);
  return Object.assign(field, { get, set });
}

function jsonField(schema, about) {
  const control = el("textarea", { rows: 2, class: "code", spellcheck: "false", placeholder: "JSON" });
  const field = labeled(control, about, schema, { hint: "JSON" });
  if (schema.default !== undefined && schema.default !== null) control.value = JSON.stringify(schema.default, null, 2);
  control.addEventListener("input", () => {
    try {
      if (control.value.trim()) fromJson(control.value);
      field.mark("");
    } catch (error) {
      field.mark(String(error.message));
    }
  });
  field.get = () => {
    if (!control.value.trim()) return undefined;
    try {
      return fromJson(control.value);
    } catch {
      return control.value;
    }
  };
  field.set = (value) => {
    control.value = value === undefined || value === null ? "" : JSON.stringify(value, null, 2);
  };
  return field;
}

function rowsField(schema, top, about) {
  const list = el("div", { class: "rows" });
  const none = resolve(schema.items, top).nullable ? null : undefined;
  let rows = [], isSet = false;
  const add = (value, focus) => {
    const at = rows.length;
    const field = fieldOf(schema.items, top, { label: "", name: `${about.name} ${at + 1}`, required: true, depth: about.depth + 1 });
    if (value !== undefined) field.set(value);
    const row = { field };
    row.node = el("div", { class: "row" }, field.node, button("", () => {
      rows = rows.filter((each) => each !== row);
      row.node.remove();
      adder.focus();
    }, { look: "bare small", picture: "cross", label: `Remove ${about.name} ${at + 1}` }));
    rows.push(row);
    list.append(row.node);
    if (focus) field.focus();
  };
  const adder = button("Add", () => add(undefined, true), { look: "small", picture: "plus", label: `Add to ${about.name}` });
  const box = el("div", { class: "list", role: "group" }, list, adder);
  const field = labeled(box, about, schema, { wraps: true });
  field.get = () => {
    const values = filled().map((row) => row.field.get() ?? none);
    return values.length || isSet ? values : undefined;
  };
  // Empty rows are not sent and do not count in a path.
  const filled = () => rows.filter((row) => (row.field.get() ?? none) !== undefined);
  field.set = (value) => {
    rows = [];
    fill(list);
    // An emptied list is empty, not the default.
    isSet = Array.isArray(value) ? value.length > 0 || value !== schema.default : about.required && value !== null;
    for (const each of Array.isArray(value) ? value : []) add(each);
  };
  field.at = (parts) => filled()[Number(parts[0])]?.field.at(parts.slice(1)) ?? field;
  const own = field.clearMarks;
  field.clearMarks = () => {
    own.call(field);
    rows.forEach((row) => row.field.clearMarks());
  };
  field.set(schema.default);
  return field;
}

function pairsField(schema, top, about) {
  const inner = { type: "array", items: { type: "object", properties: { name: { type: "string" }, value: schema.additionalProperties }, required: ["name", "value"] }, description: schema.description };
  const field = rowsField(inner, top, about);
  const { get, set, at } = field;
  field.get = () => {
    const pairs = get();
    return pairs && Object.fromEntries(pairs.filter((each) => each.name !== undefined || each.value !== undefined).map((each) => [each.name ?? "", each.value]));
  };
  field.set = (value) => {
    const pairs = Object.entries(value ?? {}).map(([name, item]) => ({ name, value: item }));
    set(pairs.length || (value && value !== schema.default) ? pairs : value === null ? null : undefined);
  };
  field.at = (parts) => {
    const names = (get() ?? []).map((each) => each.name);
    return parts.length && names.includes(parts[0]) ? at([String(names.indexOf(parts[0])), "value", ...parts.slice(1)]) : at([]);
  };
  field.set(schema.default);
  return field;
}

function groupField(schema, top, about) {
  const body = objectField(schema, top, { depth: about.depth + 1 });
  const legend = el("legend", {});
  const wrong = el("p", { class: "wrong", hidden: true });
  const group = el("fieldset", { class: about.label ? "group" : "group plain" }, about.label ? legend : null, schema.description && el("p", { class: "hint" }, schema.description), body.node, wrong);
  let isOn = about.required && !schema.nullable;
  const optional = !isOn;
  if (optional && about.label) {
    const box = el("input", { type: "checkbox", role: "switch", id: newId() });
    const show = () => {
      isOn = box.checked;
      body.node.hidden = !isOn;
    };
    box.addEventListener("change", show);
    put(legend, el("label", { class: "switch", for: box.id }, box, el("span", { class: "label" }, about.label, el("span", { class: "optional" }, "optional"))));
    show();
    body.toggle = (on) => {
      box.checked = on;
      show();
    };
  } else {
    isOn = true;
    put(legend, el("span", { class: "label" }, about.label));
  }
  const field = {
    node: group,
    get: () => (isOn ? (body.get() ?? {}) : undefined),
    set: (value) => {
      body.toggle?.(value !== undefined && value !== null);
      body.set(value ?? {});
    },
    mark: (message) => {
      wrong.hidden = !message;
      fill(wrong, message && sentence(message));
    },
    clearMarks() {
      this.mark("");
      body.clearMarks();
    },
    focus: () => body.focus(),
    at: (parts) => {
      if (parts.length) body.toggle?.(true);
      return (parts.length && body.at(parts)) || field;
    },
  };
  if (schema.default) field.set(schema.default);
  return field;
}

function unionField(schema, members, top, about) {
  const shapes = members.map((each) => resolve(each, top));
  const mapping = schema.discriminator?.propertyName;
  const labels = members.map((each) => memberName(each, top, mapping));
  const names = labels.map((name, at) => (labels.indexOf(name) === at ? name : `${name} ${at + 1}`));
  const holder = el("div", { class: "member" });
  let inner = null;
  const choose = (at) => {
    inner = at === undefined ? null : fieldOf(shapes[at], top, { label: "", name: names[at], required: true, depth: about.depth + 1 });
    fill(holder, inner?.node);
  };
  const picker = choiceField({ enum: names, description: schema.description, default: about.required && !schema.nullable ? names[0] : undefined }, names, { ...about });
  picker.node.addEventListener("change", (event) => {
    if (!holder.contains(event.target)) choose(index());
  });
  const index = () => {
    const at = names.indexOf(picker.get());
    return at < 0 ? undefined : at;
  };
  choose(index());
  picker.node.append(holder);
  const field = {
    node: picker.node,
    get: () => inner?.get(),
    set: (value) => {
      if (value === undefined || value === null) {
        picker.set(about.required && !schema.nullable ? names[0] : undefined);
        choose(index());
        return;
      }
      const best = shapes.findIndex((each) => fits(each, value, top));
      const at = Math.max(0, best < 0 ? shapes.findIndex((each) => each.type === kindOf(value) || each.properties) : best);
      picker.set(names[at]);
      choose(at);
      inner.set(value);
    },
    mark: (message) => picker.mark(message),
    clearMarks: () => {
      picker.clearMarks();
      inner?.clearMarks();
    },
    focus: () => picker.focus(),
    at: (parts) => (inner && parts.length && inner.at(parts)) || field,
  };
  if (schema.default !== undefined) field.set(schema.default);
  return field;
}

function memberName(source, top, mapping) {
  const shape = resolve(source, top);
  const tag = mapping && resolve(shape.properties?.[mapping], top);
  const own = tag?.const ?? tag?.enum?.[0] ?? shape.title ?? source.$ref?.split("/").at(-1);
  return words(own ?? (shape.items ? `list of ${memberName(shape.items, top)}` : shape.format ?? shape.type ?? "anything"));
}

function kindOf(value) {
  if (unrounded(value) !== value) return "integer";
  return Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
}

/** Returns whether a value fits a schema well enough to choose a member of a union. */
function fits(source, value, top) {
  const schema = resolve(source, top);
  const kind = kindOf(value);
  const members = schema.anyOf ?? schema.oneOf;
  const choices = choicesOf(schema, top);
  if (kind === "null") return Boolean(schema.nullable) || schema.type === "null" || schema.type === undefined;
  if (choices) return choices.includes(value);
  if (members) return members.some((each) => fits(each, value, top));
  if (kind === "array") return schema.type === "array" && (!schema.items || value.every((each) => fits(schema.items, each, top)));
  if (kind === "object") return (schema.type ?? kind) === kind && hasFields(schema, value, top);
  if (kind === "string" && INPUTS[schema.format]) return el("input", { type: INPUTS[schema.format], is: { value } }).value !== "";
  const isWhole = kind === "number" && Number.isInteger(value);
  return [undefined, kind, isWhole && "integer", kind === "integer" && "number"].includes(schema.type);
}

function hasFields(schema, value, top) {
  const { properties = {}, required = [], additionalProperties: more = !schema.properties } = schema;
  const fitsMore = (item) => more === true || (more && fits(more, item, top));
  return required.every((name) => Object.hasOwn(value, name))
    && Object.entries(value).every(([name, item]) => (Object.hasOwn(properties, name) ? fits(properties[name], item, top) : fitsMore(item)));
}

function objectField(schema, top, { only = null, depth = 0 } = {}) {
  const fields = new Map();
  const node = el("div", { class: "fields" });
  for (const [name, each] of Object.entries(schema.properties ?? {})) {
    const required = (schema.required ?? []).includes(name);
    const field = fieldOf(each, top, { label: words(only ?? name), name: words(name), required, depth });
    const { nullable, default: initial } = resolve(each, top);
    fields.set(name, { field, required, nullable, initial });
    node.append(field.node);
  }
  let extra = {};
  return {
    node,
    get() {
      const values = { ...extra };
      for (const [name, { field, required, nullable, initial }] of fields) {
        const value = field.get();
        if (value !== undefined) values[name] = value;
        else if (nullable && (required || (initial ?? null) !== null)) values[name] = null;
      }
      return values;
    },
    set(value) {
      extra = {};
      for (const [name, item] of Object.entries(value)) if (!fields.has(name)) extra[name] = item;
      for (const [name, { field, initial }] of fields) field.set(Object.hasOwn(value, name) ? value[name] : initial);
    },
    at(parts) {
      const entry = fields.get(parts[0]);
      return entry ? entry.field.at(parts.slice(1)) : null;
    },
    mark() {},
    clearMarks() {
      for (const { field } of fields.values()) field.clearMarks();
    },
    focus() {
      fields.values().next().value?.field.focus();
    },
  };
}
