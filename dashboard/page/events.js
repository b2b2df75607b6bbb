// What happened, in words, newest first; and what the job waits for now.
//
// Screen readers are told at most every few seconds, the rest as a number: a storm of deaths is one
// sentence for them.

import { clock, count } from "./format.js";
import { h, keyed, say, section } from "./dom.js";
import { hasEnded } from "./state.js";

const SHOWN = 80;
const NEW_MS = 1500;
const TOLD_EVERY_MS = 5000;
const KINDS = ["start", "death", "scale", "checkpoint"];

export function events() {
  const list = h("ol", { class: "events" });
  const waits = h("p", { class: "waits" });
  const live = h("p", { class: "unseen", role: "log", "aria-live": "polite" });
  const more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => {
    everything = true;
    draw();
  } });
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "List of events" }, list);
  const part = section("events", "Events", waits, scroll, more, live);
  const known = new Map();
  const teller = telling((text) => say(live, text));
  let everything = false;
  let all = [];
  let seen = null; // the newest id that was drawn

  function draw() {
    const shown = (everything ? all : all.slice(-SHOWN)).slice().reverse();
    const byId = new Map(shown.map((event) => [event.id, event]));
    keyed(list, [...byId.keys()], known, (id) => row(byId.get(id), seen !== null && id > seen));
    more.hidden = shown.length === all.length;
    say(more, `show all ${count(all.length)}`);
    const newer = seen === null ? [] : all.filter((event) => event.id > seen);
    teller(newer);
    seen = all.length ? all[all.length - 1].id : 0;
    say(part.remark, all.length ? "" : "nothing has happened yet");
  }

  return {
    element: part.element,
    keys: ["events", "status"],
    update(state, changed) {
      const why = hasEnded(state) ? "" : state.status.message || "";
      waits.hidden = !why;
      say(waits, why);
      if (!changed.has("events")) return;
      all = state.events;
      draw();
    },
    close: () => teller.stop(),
  };
}

// What is new stands out for a moment. No animation: each of its frames would paint the page.
function row(event, fresh) {
  const kind = KINDS.includes(event.kind) ? event.kind : "other";
  const element = h("li", { class: `event v-${kind}${fresh ? " new" : ""}`, "data-id": event.id },
    h("time", { text: clock(event.t) }),
    h("i", { class: "mark", "aria-hidden": "true" }),
    h("span", { class: "text", text: event.text }));
  if (fresh) setTimeout(() => element.classList.remove("new"), NEW_MS);
  return element;
}

function telling(tell) {
  let waiting = [];
  let timer = null;
  function now() {
    timer = null;
    if (!waiting.length) return;
    const last = waiting[waiting.length - 1];
    const others = waiting.length > 1 ? ` (and ${count(waiting.length - 1)} before it)` : "";
    waiting = [];
    tell(`${last.text}${others}`);
    timer = setTimeout(now, TOLD_EVERY_MS);
  }
  const teller = (newer) => {
    waiting.push(...newer);
    if (!timer && waiting.length) now();
  };
  teller.stop = () => clearTimeout(timer);
  return teller;
}
