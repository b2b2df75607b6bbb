// The exactly-once meter: where every record of the job is, and that none is lost or counted twice.
// And the bar of goodput: what the seconds of all replicas went into.

import { count, lasting, percent } from "./format.js";
import { foot, h, legend, say, section, setAttribute, style, twin } from "./dom.js";

const RECORDS = [
  ["done", "applied", "applied"],
  ["quarantined", "quarantined", "quarantined"],
  ["leased", "leased", "leased"],
  ["todo", "to do", "todo"],
];

export function meter() {
  const bar = stacked(RECORDS.map(([kind]) => kind), "Records of the job");
  const counts = legend([
    ["done", "applied"],
    ["leased", "leased"],
    ["recomputed", "computed again"],
    ["quarantined", "quarantined"],
    ["todo", "to do"],
  ]);
  const lost = h("b");
  const twice = h("b");
  const verdict = h("p", { class: "verdict" }, h("i", { class: "tick", "aria-hidden": "true" }),
    lost, " lost", h("span", { class: "dot", "aria-hidden": "true" }), twice, " twice");
  const table = twin("Records of the job", ["records", "number", "share"]);
  const part = section("meter", "Exactly once", verdict, bar.element,
    foot(counts.element, h("p"), table.element));
  return {
    element: part.element,
    keys: ["meter", "status"],
    update(state) {
      const told = state.meter;
      const whole = total(told);
      bar.update(RECORDS.map(([, , name]) => told[name] || 0), whole);
      for (const [kind, name] of [["done", "applied"], ["leased", "leased"],
        ["recomputed", "recomputed"], ["quarantined", "quarantined"], ["todo", "todo"]]) {
        say(counts.values[kind], count(told[name]));
        say(counts.values[kind].share, kind !== "recomputed" && told[name] && whole ? percent(told[name], whole) : "");
      }
      const known = whole !== null;
      part.element.hidden = !known && state.status.state !== "starting"; // a job without such books
      verdict.hidden = !known || told.lost === null; // a stream without end has nothing to compare with
      say(lost, count(told.lost || 0));
      say(twice, count(told.twice || 0));
      verdict.classList.toggle("broken", (told.lost || 0) > 0 || (told.twice || 0) > 0);
      say(part.remark, known ? `of ${count(whole)} records` : "no record has been counted yet");
      table.update(() => [
        ...["applied", "leased", "recomputed", "quarantined", "todo", "total", "lost", "twice"].map(
          (name) => [name, count(told[name]), percent(told[name], whole)]),
      ]);
    },
  };
}

// A stream without end has no total: what is known of it is the whole.
function total(told) {
  if (told.applied === undefined) return null;
  if (told.total) return told.total;
  const known = (told.applied || 0) + (told.leased || 0) + (told.todo || 0) + (told.quarantined || 0);
  return known || null;
}

const SECONDS = [
  ["useful", "useful"],
  ["recomputed", "computing again"],
  ["waiting_data", "waiting for data"],
  ["waiting_servers", "waiting for servers"],
  ["waiting_teachers", "waiting for teachers"],
  ["starting", "starting"],
  ["idle", "idle"],
];

export function goodput() {
  const bar = stacked(SECONDS.map(([kind]) => `g-${kind}`), "Goodput");
  const counts = legend(SECONDS.map(([kind, label]) => [`g-${kind}`, label]));
  const table = twin("Goodput: seconds of all replicas", ["what", "seconds", "share"]);
  const part = section("goodput", "Goodput", bar.element,
    foot(counts.element, h("p"), table.element));
  return {
    element: part.element,
    keys: ["goodput"],
    update(state) {
      const told = state.goodput;
      const values = SECONDS.map(([kind]) => told[kind] || 0);
      const whole = values.reduce((sum, value) => sum + value, 0);
      bar.update(values, whole || 1);
      SECONDS.forEach(([kind], at) => {
        const item = counts.values[`g-${kind}`];
        say(item, percent(values[at], whole));
        item.closest("li").hidden = !told[kind];
      });
      say(part.remark, whole ? `${percent(told.useful, whole)} useful of ${lasting(whole)}` : "not told yet");
      table.update(() => SECONDS.filter(([kind]) => told[kind] !== undefined).map(([kind, label]) =>
        [label, count(told[kind]), percent(told[kind], whole)]));
    },
  };
}

function stacked(kinds, label) {
  const pieces = kinds.map((kind) => h("i", { class: `k-${kind}` }));
  const element = h("div", { class: "stack", role: "img", "aria-label": label }, ...pieces);
  return {
    element,
    update(values, whole) {
      pieces.forEach((piece, at) => {
        const share = whole ? values[at] / whole : 0;
        // What is there is seen, were it one record of a million.
        style(piece, "width", share > 0 ? `max(2px, ${(100 * share).toFixed(3)}%)` : "0");
      });
      const parts = kinds.map((kind, at) => `${kind.replace("g-", "")} ${percent(values[at], whole)}`);
      setAttribute(element, "aria-label", `${label}: ${parts.join(", ")}`);
    },
  };
}
