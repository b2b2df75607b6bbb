// Elements out of code. Text only ever becomes a text node: nothing of a job is markup. What
// of a text would do something is told by its number.

import { visible } from "./format.js";

const SAID = ["title", "aria-label", "aria-valuetext"]; // attributes that people are told

export function h(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = visible(value);
    else setAttribute(element, name, value === true ? "" : value);
  }
  const there = children.filter((child) => child !== null && child !== undefined);
  element.append(...there.map((child) => (typeof child === "string" ? visible(child) : child)));
  return element;
}

// Writes only what differs, so that a selection stays and nothing is laid out in vain.
export function say(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

export function setAttribute(element, name, value) {
  const shown = SAID.includes(name) ? visible(value) : String(value);
  if (element.getAttribute(name) !== shown) element.setAttribute(name, shown);
}

// Custom properties and sizes go through the style's own interface, which the CSP lets pass.
export function style(element, name, value) {
  if (element.style.getPropertyValue(name) !== String(value)) {
    element.style.setProperty(name, value);
  }
}

export function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// The children of `parent` become those of `keys`, in order; those that stay are not touched.
export function keyed(parent, keys, known, make) {
  const wanted = new Set(keys);
  for (const [key, element] of known) {
    if (!wanted.has(key)) {
      element.remove();
      known.delete(key);
    }
  }
  let next = parent.firstElementChild;
  for (const key of keys) {
    let element = known.get(key);
    if (!element) {
      element = make(key);
      known.set(key, element);
    }
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
}

// A section of the page: a heading, a remark beside it, and what it holds.
export function section(name, heading, ...children) {
  const remark = h("span", { class: "remark" });
  const id = `h-${name}`;
  const element = h(
    "section",
    { class: `part part-${name}`, "aria-labelledby": id },
    h("div", { class: "part-head" }, h("h2", { id, text: heading }), remark),
    ...children,
  );
  return { element, remark };
}

// The table of the same numbers that a chart draws. Its rows are made while it is open.
export function twin(caption, columns) {
  const body = h("tbody");
  const heads = columns.map((name) => h("th", { scope: "col", text: name }));
  const table = h(
    "table",
    {},
    h("caption", { text: caption }),
    h("thead", {}, h("tr", {}, ...heads)),
    body,
  );
  let rows = () => [];
  const fill = () => {
    if (element.open) fillRows(body, rows());
  };
  const element = h(
    "details",
    { class: "twin", ontoggle: fill },
    h("summary", { text: "Table" }, h("span", { class: "unseen", text: ` of: ${caption}` })),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table),
  );
  const update = (make) => {
    rows = make;
    fill();
  };
  return { element, update };
}

export function fillRows(body, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, at) => {
    const row = body.rows[at] || body.insertRow();
    cells.forEach((cell, column) => say(row.cells[column] || row.insertCell(), String(cell)));
  });
}

// Below a chart: its legend, in whose place stands what is pointed at, and its table.
export function foot(legend, reading, table) {
  reading.classList.add("reading", "empty");
  return h("div", { class: "foot" }, h("div", { class: "foot-text" }, legend, reading), table);
}

// A swatch with its name and its number; `kind` gives colour and pattern (app.css).
export function legend(kinds) {
  const values = {};
  const items = kinds.map(([kind, label]) => {
    values[kind] = h("span", { class: "value" });
    const share = h("span", { class: "share" });
    values[kind].share = share;
    return h(
      "li",
      { "data-kind": kind },
      h("i", { class: `swatch k-${kind}`, "aria-hidden": "true" }),
      h("span", { class: "label", text: label }),
      values[kind],
      share,
    );
  });
  return { element: h("ul", { class: "legend" }, ...items), values };
}
