// The incarnations of every process over time: who died, who came in its place, where.
//
// Elements, not a canvas: names are found by Ctrl-F. A bar knows its begin and end as custom
// properties, so a change of the span (two properties of the plot) moves all of them at once.

import { clock, count, lasting, plural } from "./format.js";
import { foot, h, keyed, say, section, setAttribute, style, twin } from "./dom.js";
import { deaths, hasEnded, isDeath, rows } from "./state.js";

const ENDS = {
  killed: "was killed",
  failed: "failed",
  preempted: "was preempted",
  finished: "finished",
};
const FAULTS_DRAWN = 400;
const MANY_ROWS = 24;
const LISTS = ["workers", "servers", "teachers"];

export function timeline(span) {
  const plot = h("div", { class: "tl-rows" });
  const ticks = h("div", { class: "tl-ticks" });
  const axis = h("div", { class: "tl-axis", "aria-hidden": "true" });
  const faults = h("div", { class: "tl-faults" });
  const veil = h("div", { class: "tl-veil" });
  const over = h("div", { class: "tl-over", "aria-hidden": "true" }, ticks, faults, veil);
  const box = h("div", { class: "tl", role: "group", "aria-label": "Incarnations" }, plot, over);
  const scroll = h("div", { class: "tl-scroll" }, box);
  const reading = h("p");
  const table = twin("Incarnations of every process", [
    "process", "incarnation", "began", "ended", "end", "machine", "why",
  ]);
  const only = h("input", { type: "checkbox", id: "tl-only", onchange: () => draw() });
  const filter = h("label", { class: "check", for: "tl-only" }, only, "only those that died");
  const windows = spanButtons(span);
  const tools = h("div", { class: "tools" }, filter, windows);
  const part = section("timeline", "Incarnations", tools, scroll, axis,
    foot(key(), reading, table.element));
  const known = { rows: new Map(), faults: new Map(), ticks: new Map(), axis: new Map() };
  let state = null;
  let listed = [];
  let width = 0; // known from then on: to ask for it would have the whole page laid out
  let pointed = null; // the bar whose sentence is read

  function draw() {
    const all = rows(state.incarnations);
    filter.hidden = all.length <= MANY_ROWS;
    const shown = filter.hidden || !only.checked
      ? all : all.filter((row) => row.lives.some((one) => isDeath(one.end)));
    keyed(plot, shown.map((row) => row.name), known.rows, makeRow);
    for (const row of shown) fillRow(known.rows.get(row.name), row);
    figures();
    if (pointed) read(pointed.isConnected ? pointed : null);
    if (!plot.querySelector("[tabindex='0']")) plot.querySelector(".inc")?.setAttribute("tabindex", "0");
    drawFaults(deaths(state));
    summary(all);
    table.update(() => all.flatMap((row) => row.lives.map((one, at) => tableRow(row, one, at))));
  }

  // What a process says of itself now: the rate of a worker, else its state.
  function figures() {
    for (const [role, list] of [["worker", "workers"], ["server", "servers"], ["teacher", "teachers"]]) {
      for (const one of state.status[list] || []) {
        const row = known.rows.get(`${role}-${one.index}`);
        const rate = one.records_per_s;
        const text = hasEnded(state) ? "" : rate > 0 ? `${count(rate)}/s` : one.state || "";
        if (row) say(row.lastElementChild, text);
      }
    }
  }

  function summary(all) {
    const alive = all.filter((row) => row.lives.some((one) => one.ended == null)).length;
    const died = deaths(state).length;
    const parts = [plural(all.length, "process", "processes")];
    if (alive && alive < all.length) parts.push(`${count(alive)} alive`);
    parts.push(died ? plural(died, "death") : "no death");
    say(part.remark, all.length ? parts.join(", ") : "no process has begun yet");
  }

  function drawFaults(list) {
    const recent = list.slice(-FAULTS_DRAWN);
    keyed(faults, recent.map((one) => one.id), known.faults, (id) =>
      h("i", { class: `fault e-${state.incarnations.get(id).end}` }));
    for (const one of recent) style(known.faults.get(one.id), "--at", one.ended);
  }

  function resized() {
    width = part.element.clientWidth;
    if (width) style(box, "width", `${width}px`); // whether there is a scroll bar beside it or not
    lay();
  }

  function lay() {
    for (const one of [box, axis]) {
      style(one, "--from", span.from);
      style(one, "--span", span.to - span.from);
    }
    const places = span.ticks(width < 620 ? 3 : 8).map(String);
    keyed(ticks, places, known.ticks, () => h("i"));
    keyed(axis, places, known.axis, (t) => h("span", { text: clock(Number(t)) }));
    for (const t of places) {
      style(known.ticks.get(t), "--at", t);
      style(known.axis.get(t), "--at", t);
    }
  }

  function read(bar) {
    pointed = bar;
    say(reading, bar ? bar.getAttribute("aria-label") : "");
    reading.classList.toggle("empty", !bar);
  }

  span.listen(lay);
  for (const kind of ["mouseover", "focusin"]) {
    plot.addEventListener(kind, (event) => read(event.target.closest(".inc")));
  }
  plot.addEventListener("mouseleave", () => read(plot.querySelector(".inc:focus")));
  plot.addEventListener("keydown", (event) => walk(plot, event));
  lay();
  return {
    element: part.element,
    keys: ["incarnations", "status"],
    update(now, changed) {
      state = now;
      const lists = LISTS.map((name) => state.status[name]);
      const other = lists.some((list, at) => list !== listed[at]);
      listed = lists;
      if (changed.has("incarnations")) draw();
      else if (other) figures();
    },
    resized,
    tick(now) {
      style(veil, "--at", Math.min(Math.max(now, span.from), span.to));
      veil.hidden = !state || !state.live;
    },
  };
}

function makeRow(name) {
  const row = h("div", { class: "tl-row" },
    h("span", { class: "tl-name", text: name, title: name }),
    h("div", { class: "tl-lane" }), h("span", { class: "tl-now" }));
  row.bars = new Map();
  return row;
}

function fillRow(element, row) {
  const lane = element.children[1];
  keyed(lane, row.lives.map((one) => one.id), element.bars, () =>
    h("button", { type: "button", class: "inc", tabindex: "-1" }));
  row.lives.forEach((one, at) => {
    const bar = element.bars.get(one.id);
    if (bar.life === one && bar.of === row.lives.length) return;
    [bar.life, bar.of] = [one, row.lives.length];
    const open = one.ended === null || one.ended === undefined;
    setAttribute(bar, "class", `inc r-${known(one.role)}${open ? " open" : ""}${mark(one)}`);
    style(bar, "--b", one.began);
    style(bar, "--e", open ? 1e9 : one.ended);
    setAttribute(bar, "aria-label", sentence(row, one, at));
  });
}

const ROLES = ["master", "server", "worker", "teacher"];
const known = (role) => (ROLES.includes(role) ? role : "other");
const mark = (one) => (one.end in ENDS ? ` e-${one.end}` : "");

function sentence(row, one, at) {
  const which = row.lives.length > 1 ? `, incarnation ${at + 1} of ${row.lives.length}` : "";
  const where = one.machine ? ` on ${one.machine}` : "";
  if (one.ended === null || one.ended === undefined) {
    return `${row.name}${which}: runs since ${clock(one.began)}${where}.`;
  }
  const why = one.why ? `: ${one.why}` : "";
  const lasted = lasting(one.ended - one.began);
  const end = ENDS[one.end] || "ended";
  return `${row.name}${which}: ${end} at ${clock(one.ended)}, after ${lasted}${where}${why}`;
}

function tableRow(row, one, at) {
  return [row.name, at + 1, clock(one.began), one.ended == null ? "runs" : clock(one.ended),
    one.end || "", one.machine || "", one.why || ""];
}

// One stop of the tab key for the whole plot; arrows go on from bar to bar.
function walk(plot, event) {
  const bar = event.target.closest(".inc");
  if (!bar) return;
  const lane = bar.parentElement;
  const row = lane.parentElement;
  const end = { Home: plot.firstElementChild, End: plot.lastElementChild }[event.key];
  let next = null;
  if (event.key === "ArrowRight") next = bar.nextElementSibling;
  else if (event.key === "ArrowLeft") next = bar.previousElementSibling;
  else if (event.key === "ArrowDown") next = row.nextElementSibling?.querySelector(".inc:last-child");
  else if (event.key === "ArrowUp") next = row.previousElementSibling?.querySelector(".inc:last-child");
  else if (end) next = end.querySelector(".inc:last-child");
  else return;
  event.preventDefault();
  if (!next) return;
  plot.querySelectorAll(".inc[tabindex='0']").forEach((one) => one.setAttribute("tabindex", "-1"));
  next.setAttribute("tabindex", "0");
  next.focus();
}

function key() {
  const item = (kind, text) =>
    h("li", {}, h("i", { class: `swatch m-${kind}`, "aria-hidden": "true" }), text);
  return h("ul", { class: "legend marks" }, item("killed", "killed"), item("failed", "failed"),
    item("preempted", "preempted"), item("finished", "finished"));
}

function spanButtons(span) {
  const choices = [["all", null], ["1 h", 3600], ["10 min", 600], ["1 min", 60]];
  const buttons = choices.map(([text, seconds]) =>
    h("button", {
      type: "button",
      "aria-pressed": String(seconds === null),
      text,
      onclick: () => span.follow(seconds),
    }));
  span.listen(() => buttons.forEach((button, at) =>
    setAttribute(button, "aria-pressed", String(!span.fixed && span.last === choices[at][1]))));
  return h("div", { class: "choice", role: "group", "aria-label": "Time shown" }, ...buttons);
}
