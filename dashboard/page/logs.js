// The logs of one process: asked for when somebody wants them, and again while they are followed.

import { h, say, section } from "./dom.js";
import { rows } from "./state.js";

const FOLLOW_MS = 2000;

export function logs(job, fetchText) {
  const who = h("select", { id: "log-who", onchange: () => load() });
  const tail = h("select", { id: "log-tail", onchange: () => load() },
    ...[200, 1000, 5000].map((lines) => h("option", { value: String(lines), text: `last ${lines} lines` })));
  const find = h("input", { type: "search", id: "log-find", placeholder: "only lines with…", oninput: () => draw() });
  const follow = h("input", { type: "checkbox", id: "log-follow", onchange: () => turn() });
  const text = h("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Log", hidden: true });
  const part = section("logs", "Logs",
    h("div", { class: "log-tools" },
      h("label", { for: "log-who" }, "of ", who), h("label", { for: "log-tail" }, h("span", { class: "unseen", text: "how many" }), tail),
      h("label", { for: "log-find" }, h("span", { class: "unseen", text: "filter" }), find),
      h("label", { class: "check", for: "log-follow" }, follow, "follow"),
      h("button", { type: "button", text: "Show", onclick: () => load() })),
    text);
  let content = "";
  let timer = null;

  function draw() {
    const part = find.value.toLowerCase();
    const lines = part ? content.split("\n").filter((line) => line.toLowerCase().includes(part)) : null;
    const low = text.scrollHeight - text.scrollTop - text.clientHeight < 8;
    text.hidden = false;
    say(text, lines ? lines.join("\n") || "no line has that" : content || "nothing was printed yet");
    if (low) text.scrollTop = text.scrollHeight;
  }

  async function load() {
    if (!fetchText || !who.value) return;
    const [role, index] = who.value.split("/");
    const query = new URLSearchParams({ role, index, tail: tail.value });
    try {
      content = await fetchText(`api/jobs/${encodeURIComponent(job)}/logs?${query}`);
      draw();
      say(part.remark, "");
    } catch (error) {
      say(part.remark, `cannot be had: ${error.message}`);
    }
  }

  function turn() {
    clearInterval(timer);
    timer = follow.checked ? setInterval(load, FOLLOW_MS) : null;
    if (follow.checked) load();
  }

  return {
    element: part.element,
    keys: ["incarnations"],
    update(state) {
      part.element.hidden = !fetchText;
      const wanted = rows(state.incarnations);
      const same = [...who.options].map((option) => option.text).join() === wanted.map((row) => row.name).join();
      if (same) return;
      const chosen = who.value;
      who.replaceChildren(...wanted.map((row) => h("option", { value: `${row.role}/${row.index}`, text: row.name })));
      if ([...who.options].some((option) => option.value === chosen)) who.value = chosen;
    },
    close: () => clearInterval(timer),
  };
}
