// The page: a list of jobs, or one job by the hash (#/NAME), or the one that is saved in the file.
//
// What comes is put into the state at once and drawn at the next frame; of all panels only those
// whose part of the state has changed.

import { actions } from "./actions.js";
import { charts } from "./charts.js";
import { h } from "./dom.js";
import { events } from "./events.js";
import { parsed } from "./finite.js";
import { header } from "./header.js";
import { jobList } from "./jobs.js";
import { act, getText, stream } from "./link.js";
import { logs } from "./logs.js";
import { goodput, meter } from "./meter.js";
import { cost, kept, quarantine, schedule, shards, teachers } from "./panels.js";
import { Span } from "./span.js";
import { applyChange, applySnapshot, blank, jobNow } from "./state.js";
import { strip } from "./strip.js";
import { timeline } from "./timeline.js";

const TICK_MS = 1000;
const MANY = 100; // processes; with more, what is no event is drawn seldomer
const REST_MS = 2; // for each process
const LONGEST_REST_MS = 2000;

// One job: its panels, and how they follow its state.
function jobView(job, saved) {
  const path = `api/jobs/${encodeURIComponent(job)}`;
  const state = blank();
  const span = new Span();
  const top = header(job, !saved);
  const doing = actions(job, (body) => act(job, body));
  top.element.querySelector(".say").append(doing.element);
  const main = [meter(), strip(), timeline(span), charts(span)];
  const side = [events(), goodput(), shards(), quarantine(), teachers(), schedule(), cost(), kept()];
  const below = [logs(job, saved ? null : getText)];
  const panels = [top, doing, ...main, ...side, ...below];
  const of = (list) => list.map((panel) => panel.element);
  const element = h("div", { class: "job waiting" }, top.element,
    h("main", { id: "main", tabindex: "-1" },
      h("div", { class: "wide" }, ...of(main)), h("aside", { class: "side", "aria-label": "Events and load" }, ...of(side)),
      h("div", { class: "below" }, ...of(below))));
  let dirty = new Set();
  let asked = false;
  let later = null;
  let drawnAt = 0;
  let heardAt = performance.now();
  let link = { lost: null, saved: true };

  const since = () => (performance.now() - heardAt) / 1000;

  function draw() {
    asked = false;
    clearTimeout(later);
    later = null;
    drawnAt = performance.now();
    element.classList.remove("waiting");
    const changed = dirty;
    dirty = new Set();
    for (const panel of panels) {
      if (panel.keys.some((key) => changed.has(key))) panel.update(state, changed);
    }
    time();
    top.refresh(link, since());
  }

  function time() {
    const now = jobNow(state, link.lost === null ? Math.min(since(), 5) : 0);
    span.tick(now);
    for (const panel of panels) panel.tick?.(now);
  }

  function heard(name, told) {
    heardAt = performance.now();
    let changed;
    try {
      changed = name === "snapshot" ? applySnapshot(state, told) : applyChange(state, told);
    } catch (error) { // of another schema: what is shown is no longer what is
      top.fail(error.message);
      return;
    }
    changed.forEach((key) => dirty.add(key));
    const wait = changed.has("events") || changed.has("incarnations") ? 0 : rest();
    if (wait <= 0) ask();
    else later = later ?? setTimeout(ask, wait);
  }

  // The milliseconds until the next drawing: the more processes, the more of it a drawing takes.
  function rest() {
    const many = state.incarnations.size;
    return many > MANY ? drawnAt + Math.min(LONGEST_REST_MS, REST_MS * many) - performance.now() : 0;
  }

  function ask() {
    if (!asked) requestAnimationFrame(draw);
    asked = true;
  }

  function tick() {
    top.refresh(link, since());
    if (state.at && rest() <= 0) time();
  }

  const timer = setInterval(tick, TICK_MS);
  const sizes = new ResizeObserver(() => panels.forEach((panel) => panel.resized?.()));
  sizes.observe(element);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const themed = () => panels.forEach((panel) => panel.themed?.());
  dark.addEventListener("change", themed);
  if (saved) heard("snapshot", saved);
  else link = stream(`${path}/stream`, path, ["snapshot", "change"], heard, () => top.refresh(link, since()));
  return {
    element,
    state,
    close() {
      clearInterval(timer);
      clearTimeout(later);
      sizes.disconnect();
      dark.removeEventListener("change", themed);
      panels.forEach((panel) => panel.close?.());
      if (link.close) link.close();
    },
  };
}

function listView() {
  const list = jobList();
  const link = stream("api/stream", "api/jobs", ["jobs"], (_, told) => list.update(told.jobs), () => list.refresh(link));
  const timer = setInterval(() => list.refresh(link), TICK_MS);
  return {
    element: list.element,
    close() {
      clearInterval(timer);
      link.close();
    },
  };
}

function named(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand, with a % of its own
  }
}

function start() {
  const embedded = document.getElementById("edl-snapshot");
  const saved = embedded && parsed(embedded.textContent);
  const skip = h("button", { type: "button", class: "skip", text: "Skip to the content",
    onclick: () => document.getElementById("main").focus() });
  const place = h("div", { id: "app" });
  document.body.prepend(skip, place);
  let view = null;
  function show() {
    if (view) view.close();
    const name = named(location.hash.replace(/^#\/?/, ""));
    if (saved) view = jobView(saved.status.job_name || "job", saved);
    else view = name ? jobView(name, null) : listView();
    place.replaceChildren(view.element);
    window.scrollTo(0, 0);
  }
  if (!saved) window.addEventListener("hashchange", show);
  show();
}

start();
