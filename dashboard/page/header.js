// The head of a job's page: its health in one sentence, how fresh that is, its figures.

import { clock, count, lasting, percent, short, significant } from "./format.js";
import { h, say, setAttribute } from "./dom.js";
import { deaths, hasEnded } from "./state.js";

const LEVELS = ["good", "warn", "bad", "ended"];
const STALE_S = 5; // of the master's word: it is heard four times a second, seldomer of large jobs

export function header(job, many) {
  const health = h("p", { class: "health" },
    h("i", { class: "sign", "aria-hidden": "true" }), h("span", { class: "sentence" }));
  const fresh = h("p", { class: "fresh" }, h("i", { class: "sign", "aria-hidden": "true" }), h("span"));
  const list = figures();
  // Told when the level changes: the sentence itself may change with each figure in it.
  const live = h("p", { class: "unseen", role: "status" });
  const element = h("header", { class: "head" },
    h("div", { class: "crumbs" },
      many ? h("a", { class: "brand", href: "#/", text: "edl" }) : h("span", { class: "brand", text: "edl" }),
      h("h1", { text: job }), fresh),
    h("div", { class: "say" }, health, live));
  let state = null;

  function refresh(link, since) {
    const [level, text] = freshness(state, link, since);
    if (!state) say(health.lastElementChild, link.refused || "Waits for the first word of this job…");
    health.classList.toggle("stale", level === "bad" && Boolean(state));
    setAttribute(fresh, "class", `fresh f-${level}`);
    say(fresh.lastElementChild, text);
  }

  return {
    element: h("div", {}, element, list.element),
    keys: ["health", "status", "live", "heard_s", "meter", "incarnations"],
    refresh,
    update(now) {
      state = now;
      const level = LEVELS.includes(state.health.level) ? state.health.level : "good";
      const text = state.health.text || state.status.state || "not heard of yet";
      if (!health.classList.contains(`l-${level}`)) say(live, text);
      setAttribute(health, "class", `health l-${level}`); // and what is told is fresh
      say(health.lastElementChild, text);
      const { records_done: done, records_total: total } = state.status;
      list.update(state);
      document.title = `${total ? `${percent(done, total)} · ` : ""}${job} · edl`;
    },
  };
}

// [level, words]: what of the page is old, and why. The nearest fault is told, not the farthest.
export function freshness(state, link, since) {
  if (link.saved) return ["ended", `saved ${new Date(state.at * 1000).toLocaleString("en-GB")}`];
  if (link.refused) return ["bad", link.refused];
  if (!state && link.lost === null) return ["ended", "connecting"];
  if (link.lost !== null) {
    return ["bad", `connection lost ${lasting(link.lost)} ago, trying again; this is what was known`];
  }
  if (!state.live) {
    return hasEnded(state) ? ["ended", "over: nothing more will come"] : ["warn", "its master does not answer"];
  }
  if (state.heard_s === null) return ["warn", "its master has not been heard yet"];
  const age = state.heard_s + since;
  if (age > STALE_S) return ["warn", `its master was last heard ${lasting(age)} ago`];
  return ["good", `live, heard ${lasting(age)} ago`];
}

function figures() {
  const cells = new Map();
  const element = h("dl", { class: "figures" });
  const put = (name, value, unit = "", alert = false) => {
    if (!cells.has(name)) {
      const cell = h("div", { "data-figure": name }, h("dt", { text: name }),
        h("dd", {}, h("span", { class: "number" }), h("span", { class: "unit" })));
      cells.set(name, cell);
      element.append(cell);
    }
    const cell = cells.get(name);
    cell.hidden = value === null;
    say(cell.querySelector(".number"), value ?? "");
    say(cell.querySelector(".unit"), unit);
    cell.classList.toggle("alert", alert);
  };
  return { element, update: (state) => tell(state, put) };
}

function tell(state, put) {
  const status = state.status;
  const total = status.records_total;
  put("records", short(status.records_done), total ? `of ${short(total)}` : "");
  put("done", total ? percent(status.records_done, total) : null);
  const epochs = status.num_epochs;
  put("epoch", epochs ? String(Math.min((status.epoch ?? 0) + 1, epochs)) : null, epochs ? `of ${epochs}` : "");
  const rate = status.records_per_s;
  const over = hasEnded(state);
  const mean = over && status.run_s ? (status.records_done - (status.records_before || 0)) / status.run_s : null;
  put(over ? "mean rate" : "rate", short(over ? mean : rate), "/s");
  put("loss", status.loss == null ? null : significant(status.loss));
  put("version", short(status.version));
  const there = (list) => (list || []).filter((one) => one.heartbeat_age_s !== null).length;
  if (status.workers) put("workers", over ? count(status.workers.length) : count(there(status.workers)), ofAll(status.workers, over));
  if (status.servers?.length) put("servers", over ? count(status.servers.length) : count(there(status.servers)), ofAll(status.servers, over));
  const died = deaths(state).length;
  put("deaths", count(died), "", died > 0);
  put(over ? "took" : "running for", clock(status.run_s));
  const left = total && rate > 0 && !over ? (total - status.records_done) / rate : null;
  put("about left", left === null ? null : clock(left));
}

const ofAll = (list, over) => (over ? "" : `of ${count(list.length)}`);
