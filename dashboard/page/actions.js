// What may be done to a job from here: only what the server has named, and only after a question.

import { h, say, setAttribute } from "./dom.js";
import { rows } from "./state.js";

// Of each: its button, the question, what it says will happen, and the fields that it asks for.
const KNOWN = {
  scale: { text: "Scale", ask: "How many workers?", does: "Workers are started, or leave in order; the servers stay.", fields: ["workers"] },
  checkpoint: { text: "Checkpoint", ask: "Write a checkpoint now?", does: "Training goes on meanwhile." },
  suspend: { text: "Suspend", ask: "Suspend this job?", does: "Its processes end, and what is done is kept: resume goes on there." },
  resume: { text: "Resume", ask: "Let it go on?", does: "Its processes are started again, and it goes on where it was." },
  stop: { text: "Stop", ask: "Stop this job?", does: "Workers hand back, a checkpoint is written, and the job ends.", grave: true },
  kill: { text: "Kill", ask: "Kill a process?", does: "It gets SIGKILL, as a machine that fails would do it. The job goes on.", grave: true, fields: ["process"] },
};

export function actions(job, post) {
  const bar = h("div", { class: "actions", role: "group", "aria-label": "Actions" });
  const answer = h("p", { class: "answer", role: "status" });
  const dialog = h("dialog", { class: "ask", "aria-labelledby": "ask-title" });
  const element = h("div", { class: "acting" }, bar, answer, dialog);
  let state = null;
  let shown = "";

  function open(name) {
    const what = KNOWN[name];
    const fields = (what.fields || []).map((field) => FIELDS[field](state));
    const error = h("p", { class: "error", role: "alert" });
    const go = h("button", { type: "submit", class: what.grave ? "grave" : "main", text: what.text });
    const form = h("form", { method: "dialog" },
      h("h2", { id: "ask-title", text: what.ask }),
      h("p", {}, h("strong", { text: job }), ` – ${what.does}`),
      ...fields.map((field) => field.element), error,
      h("div", { class: "buttons" },
        h("button", { type: "button", text: "Leave it", onclick: () => dialog.close() }), go));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      try {
        const told = await post({ action: name, ...Object.assign({}, ...fields.map((field) => field.value())) });
        dialog.close();
        say(answer, told || `${what.text}: asked for`);
      } catch (failure) {
        say(error, failure.message);
      }
      go.disabled = false;
    });
    dialog.replaceChildren(form);
    dialog.showModal();
    (form.querySelector("input, select") || go).focus();
  }

  return {
    element,
    keys: ["actions", "incarnations", "status"],
    update(now, changed) {
      state = now;
      if (!changed.has("actions")) return;
      const wanted = state.actions.filter((name) => Object.hasOwn(KNOWN, name));
      if (wanted.join() === shown) return; // a button that has the focus keeps it
      shown = wanted.join();
      bar.replaceChildren(...wanted.map((name) => h("button", {
        type: "button",
        class: KNOWN[name].grave ? "grave" : null,
        "data-action": name,
        text: `${KNOWN[name].text}…`,
        onclick: () => open(name),
      })));
      setAttribute(element, "class", wanted.length ? "acting" : "acting none");
    },
  };
}

const FIELDS = {
  workers(state) {
    const now = (state.status.workers || []).length || 1;
    const input = h("input", { type: "number", id: "ask-workers", min: "1", max: "10000", step: "1", required: true, value: String(now) });
    return {
      element: h("label", { for: "ask-workers" }, "Workers ", input),
      value: () => ({ num_workers: Number(input.value) }),
    };
  },
  process(state) {
    const alive = rows(state.incarnations).filter((row) => row.lives.some((one) => one.ended == null));
    const select = h("select", { id: "ask-process" },
      ...alive.map((row) => h("option", { value: `${row.role}/${row.index}`, text: row.name })));
    const worker = alive.find((row) => row.role === "worker");
    if (worker) select.value = `worker/${worker.index}`;
    return {
      element: h("label", { for: "ask-process" }, "Process ", select),
      value() {
        const [role, index] = select.value.split("/");
        return { role, index: Number(index) };
      },
    };
  },
};
