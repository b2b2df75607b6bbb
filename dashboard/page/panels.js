// The narrow panels: load and rows of the shards, teachers, the scheduler's reason, the cost.

import { bytes, count, lasting, percent, short, significant, title } from "./format.js";
import { fillRows, h, say, section, style } from "./dom.js";

const RECORDS_NAMED = 5;
const HERE = ["ready", "running", "serving"];

export function shards() {
  const body = h("tbody");
  const heads = ["server", "rows", "size", "pulls/s", "pushes/s"];
  const table = h("table", { class: "shards" },
    h("caption", { class: "unseen", text: "Load and rows of each parameter server" }),
    h("thead", {}, h("tr", {}, ...heads.map((name) => h("th", { scope: "col", text: name })))), body);
  const part = section("shards", "Parameter servers",
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Parameter servers" }, table));
  return {
    element: part.element,
    keys: ["shards"],
    update(state) {
      const all = [...state.shards.values()].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
      part.element.hidden = !all.length;
      fillRows(body, all.map((one) => [one.name, short(one.rows), bytes(one.nbytes),
        significant(one.pulls_per_s, 3), significant(one.pushes_per_s, 3)]));
      const fields = [null, "rows", "nbytes", "pulls_per_s", "pushes_per_s"];
      const most = fields.map((field) => Math.max(1e-9, ...all.map((one) => one[field] || 0)));
      all.forEach((one, at) => {
        const cells = body.rows[at].cells;
        fields.forEach((field, column) => field && style(cells[column], "--heat", (one[field] || 0) / most[column]));
        body.rows[at].className = !one.state || HERE.includes(one.state) ? "" : "away";
        body.rows[at].title = one.state || "";
      });
      const [rows, nbytes] = [sum(all, "rows"), sum(all, "nbytes")];
      say(part.remark, rows ? `${count(all.length)}, ${short(rows)} rows, ${bytes(nbytes)}` : count(all.length));
    },
  };
}

const sum = (all, field) => all.reduce((total, one) => total + (one[field] || 0), 0);

export function teachers() {
  return facts("teaching", "Teachers", (state) => {
    const told = state.teaching;
    if (!told) return null;
    const last = (told.decisions || [])[told.decisions?.length - 1];
    const asked = (told.records || 0) + (told.cached || 0);
    const rows = [["workers wait for them", percent(told.wait_share ?? 0, 1)]];
    if (told.records !== undefined) rows.push(["records taught", count(told.records)]);
    if (told.cached) rows.push(["out of the cache", `${count(told.cached)} (${percent(told.cached, asked)})`]);
    if (told.untaught) rows.push(["given up on", count(told.untaught)]);
    for (const one of state.status.teachers || []) {
      const words = [one.state, `${count(one.rows_per_s)} rows/s`, `${count(one.queued)} queued`];
      rows.push([`teacher-${one.index}`, words.join(", ")]);
    }
    return { why: last ? `${last.wanted} wanted: ${last.why}` : "", rows };
  });
}

export function schedule() {
  return facts("schedule", "Scheduler", (state) => told(state.schedule));
}

export function cost() {
  return facts("cost", "Cost", (state) => told(state.cost));
}

export function quarantine() {
  return facts("quarantined", "Quarantined records", (state) => {
    const found = state.status.quarantined || [];
    if (!found.length) return null;
    const rows = found.map((one) => [`${one.source} ${listed(one.records)}`, one.error]);
    return { why: "", rows };
  });
}

const listed = (records) => {
  const more = records.length > RECORDS_NAMED ? ` and ${count(records.length - RECORDS_NAMED)} more` : "";
  return records.slice(0, RECORDS_NAMED).join(", ") + more;
};

// What is left of the job when it is over, and how to go on with it.
export function kept() {
  return facts("kept", "Kept", (state) => {
    const { checkpoint, best, began_from: from, resume } = state.status;
    const rows = [];
    if (best) rows.push([`best ${best.metric}`, `${significant(best.value)}, of version ${count(best.version)}`]);
    if (checkpoint) rows.push(["newest checkpoint", checkpoint]);
    if (from) rows.push(["began from", from]);
    if (resume) rows.push(["to go on", `edl train --resume ${resume}`]);
    return rows.length ? { why: "", rows } : null;
  });
}

// Whatever fields there are, by their names; the sentence first.
function told(given) {
  if (!given) return null;
  const rows = Object.entries(given)
    .filter(([name, value]) => name !== "why" && value !== null && typeof value !== "object")
    .map(([name, value]) => [title(name), said(name, value)]);
  return { why: given.why || "", rows };
}

function said(name, value) {
  if (typeof value !== "number") return String(value);
  if (name.endsWith("_s")) return lasting(value);
  if (name === "usd" || name.startsWith("$") || name.endsWith("_usd")) return `$ ${value.toFixed(2)}`;
  return Number.isInteger(value) ? count(value) : significant(value);
}

function facts(name, heading, read) {
  const why = h("p", { class: "waits" });
  const body = h("tbody");
  const table = h("table", { class: "facts" }, h("caption", { class: "unseen", text: heading }), body);
  const part = section(name, heading, why, table);
  part.element.hidden = true;
  return {
    element: part.element,
    keys: [name, "status"],
    update(state) {
      const found = read(state);
      part.element.hidden = !found || (!found.rows.length && !found.why);
      if (part.element.hidden) return;
      why.hidden = !found.why;
      say(why, found.why);
      fillRows(body, found.rows);
    },
  };
}
