// The list of all jobs, those that run first.

import { clock, count, percent, short, significant } from "./format.js";
import { h, keyed, say, setAttribute, style } from "./dom.js";
import { ENDED } from "./state.js";

const HEADS = ["job", "state", "done", "", "rate", "loss", "workers", "ran", "says"];

export function jobList() {
  const body = h("tbody");
  const table = h("table", { class: "jobs" }, h("caption", { class: "unseen", text: "Jobs" }),
    h("thead", {}, h("tr", {}, ...HEADS.map((name) =>
      name ? h("th", { scope: "col", text: name }) : h("td")))), body);
  const none = h("div", { class: "none", hidden: true },
    h("p", { text: "No job is here yet." }),
    h("p", {}, "Start one, and it appears without a reload: ", h("code", { text: "edl train --model_def deepfm --training_data …" })));
  const remark = h("p", { class: "fresh" }, h("i", { class: "sign", "aria-hidden": "true" }), h("span"));
  const summary = h("p", { class: "health" }, h("span", { class: "sentence", text: "Waits for the list of jobs…" }));
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Jobs", hidden: true }, table);
  const element = h("div", { class: "list" },
    h("header", { class: "head" }, h("div", { class: "crumbs" }, h("span", { class: "brand", text: "edl" }), h("h1", { text: "Jobs" }), remark),
      h("div", { class: "say" }, summary)),
    h("main", { id: "main", tabindex: "-1" }, scroll, none));
  const known = new Map();

  function update(told) {
    const jobs = told.slice().sort((a, b) => over(a) - over(b) || (a.started_s_ago || 0) - (b.started_s_ago || 0));
    const byName = new Map(jobs.map((job) => [job.job_name, job]));
    scroll.hidden = !jobs.length;
    none.hidden = jobs.length > 0;
    keyed(body, [...byName.keys()], known, makeRow);
    for (const [name, job] of byName) fillRow(known.get(name), job);
    const running = jobs.filter((job) => !over(job)).length;
    const ended = jobs.length - running;
    say(summary.lastElementChild, jobs.length ? `${count(running)} running, ${count(ended)} ended` : "No jobs");
    document.title = `${running ? `${running} running · ` : ""}edl`;
  }

  return {
    element,
    update,
    refresh(link) {
      const lost = link.lost;
      setAttribute(remark, "class", `fresh f-${lost === null ? "good" : "bad"}`);
      say(remark.lastElementChild, lost === null ? "live" : link.refused || "connection lost, trying again");
    },
  };
}

const over = (job) => ENDED.includes(job.state);

function makeRow(name) {
  const bar = h("div", { class: "progress", "aria-hidden": "true" }, h("i"));
  const state = h("td", {}, h("i", { class: "sign", "aria-hidden": "true" }), h("span"));
  return h("tr", {},
    h("th", { scope: "row" }, h("a", { href: `#/${encodeURIComponent(name)}`, text: name })),
    state, h("td"), h("td", {}, bar), h("td"), h("td"), h("td"), h("td"), h("td"));
}

const LEVEL = { running: "good", failed: "bad", dead: "bad", silent: "warn", starting: "warn", stopping: "warn" };

function fillRow(row, job) {
  const cells = row.cells;
  const level = LEVEL[job.state] || "ended";
  setAttribute(row, "class", `l-${level}${over(job) ? " over" : ""}`);
  say(cells[1].lastElementChild, job.state || "");
  say(cells[2], job.records_total ? percent(job.records_done, job.records_total) : short(job.records_done));
  style(cells[3].firstElementChild.firstElementChild, "width",
    job.records_total ? `${(100 * job.records_done) / job.records_total}%` : "0");
  say(cells[4], over(job) ? "–" : `${short(job.records_per_s)}/s`);
  say(cells[5], significant(job.loss));
  say(cells[6], count((job.workers || []).length));
  say(cells[7], clock(job.started_s_ago ?? job.run_s));
  say(cells[8], job.message && job.message !== job.state ? job.message : "");
}
