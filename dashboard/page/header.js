// The head of a job's page: its health in one sentence, how fresh that is, its figures.

import { clock, count, headline, lasted, lasting, percent, short, significant, visible } from "./format.js";
import { h, say, setAttribute } from "./dom.js";
import { deaths, hasEnded } from "./state.js";

const LEVELS = ["good", "warn", "bad", "ended"];
const STALE_S = 5; // of the master's word: it is heard four times a second, seldomer of large jobs

export function header(job, many) {
  let whole = ""; // the class of a sentence that somebody wants to read to its end, where that is cut
  const health = h("p", { class: "health", onclick: () => {
    whole = whole ? "" : " whole";
    health.classList.toggle("whole", Boolean(whole));
  } },
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
  let failed = "";

  function refresh(link, since) {
    const [level, text] = failed ? ["bad", failed] : freshness(state, link, since);
    if (!state) say(health.lastElementChild, link.refused || "Waits for the first word of this job…");
    health.classList.toggle("stale", level === "bad" && Boolean(state));
    setAttribute(fresh, "class", `fresh f-${level}`);
    say(fresh.lastElementChild, text);
  }

  return {
    element: h("div", {}, element, list.element),
    keys: ["health", "status", "live", "heard_s", "meter", "incarnations"],
    refresh,
    fail(text) {
      failed = text;
    },
    update(now) {
      state = now;
      const level = LEVELS.includes(state.health.level) ? state.health.level : "good";
      const text = headline(state.health.text || state.status.state || "not heard of yet");
      if (!health.classList.contains(`l-${level}`)) say(live, text);
      setAttribute(health, "class", `health l-${level}${whole}`); // and what is told is fresh
      say(health.lastElementChild, text);
      const { records_done: done, records_total: total } = state.status;
      list.update(state);
      document.title = `${total ? `${percent(done, total)} · ` : ""}${visible(job)} · edl`;
    },
  };
}

// [level, words]: what of the page is old, and why. The nearest fault is told, not the farthest.
export function freshness(state, link, since) {
  if (!state) return link.lost === null ? ["ended", "connecting"] : ["warn", "asks again"];
  if (link.saved) return ["ended", `saved ${new Date(state.at * 1000).toLocaleString("en-GB")}`];
  if (link.refused) return ["bad", link.refused];
  if (link.lost !== null) {
    return ["bad", `connection lost ${lasting(link.lost)} ago, trying again; this is what was known`];
  }
  if (!state.live) {
    return hasEnded(state) ? ["ended", "over: nothing more will come"] : ["warn", "its master does not answer"];
  }
  if (state.heard_s === null) return ["warn", "its master has not been heard yet"];
  const age = state.heard_s + since;
  if (age > STALE_S) return ["warn", `its master was last heard ${lasting(age)} ago`];
  return ["good", age < 2 ? "live, heard just now" : `live, heard ${Math.round(age)} s ago`];
}

function figures() {
  const element = h("dl", { class: "figures" });
  const cells = new Map(FIGURES.map((name) => [name, h("div", { "data-figure": name, hidden: true },
    h("dt", { text: name }), h("dd", {}, h("span", { class: "number" }), h("span", { class: "unit" })))]));
  element.append(...cells.values());
  return {
    element,
    update(state) {
      const told = hasEnded(state) ? { ...common(state), ...ended(state) } : { ...common(state), ...now(state) };
      for (const [name, cell] of cells) {
        const [value, unit] = told[name] || [null, ""];
        cell.hidden = value === null;
        say(cell.querySelector(".number"), value ?? "");
        say(cell.querySelector(".unit"), unit || "");
        cell.classList.toggle("alert", name === "deaths" && value !== "0");
      }
    },
  };
}

const FIGURES = ["records", "done", "epoch", "rate", "mean rate", "loss", "version", "workers", "servers",
  "deaths", "running for", "took", "about left"];

// Of each figure its number and its unit; what is not told, or has no meaning, is left out.
function common(state) {
  const status = state.status;
  const { records_total: total, num_epochs: epochs } = status;
  const told = {
    records: [short(status.records_done), total ? `of ${short(total)}` : ""],
    version: [short(status.version)],
    deaths: [count(deaths(state).length)],
  };
  if (total) told.done = [percent(status.records_done, total)];
  if (epochs) told.epoch = [String(Math.min((status.epoch ?? 0) + 1, epochs)), `of ${epochs}`];
  return told;
}

function now(state) {
  const { records_done: done, records_total: total, records_per_s: rate, loss, run_s: ran, started_s_ago: since } = state.status;
  const told = { rate: [short(rate), "/s"], "running for": lasted(since, ran) };
  if (loss != null) told.loss = [significant(loss)];
  if (total && rate > 0) told["about left"] = [clock((total - done) / rate)];
  for (const name of ["workers", "servers"]) {
    const list = state.status[name] || [];
    const there = list.filter((one) => one.heartbeat_age_s !== null).length;
    if (list.length) told[name] = [count(there), `of ${count(list.length)}`];
  }
  return told;
}

function ended(state) {
  const { records_done: done, records_before: before, run_s: ran, started_s_ago: since } = state.status;
  const told = { took: lasted(since, ran) };
  if (ran) told["mean rate"] = [short(Math.round((done - (before || 0)) / ran)), "/s"];
  for (const name of ["workers", "servers"]) {
    const list = state.status[name] || [];
    if (list.length) told[name] = [count(list.length)];
  }
  return told;
}
