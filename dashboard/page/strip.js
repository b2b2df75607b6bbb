// The task strip: one cell a task of the epoch, in order, on a canvas; a slider says of each what it is.

import { count, percent } from "./format.js";
import { foot, h, legend, say, section, setAttribute, style, themed, twin } from "./dom.js";
import { TASK_STATES, expanded, taskAt, taskCounts } from "./state.js";

const NAMES = {
  done: "done",
  recomputed: "done, partly computed again",
  leased: "leased",
  quarantined: "with quarantined records",
  todo: "to do",
};
const HEIGHT = 96;
const SMALLEST = 2;
const LARGEST = 16;
const TABLE_ROWS = 500;

// How many columns and of what size, so that `count` cells fill the width and little of the height.
export function layout(cells, width) {
  if (cells * LARGEST <= width) {
    const size = Math.min(48, width / Math.max(1, cells));
    return { columns: Math.max(1, cells), wide: size, high: 22, rows: 1 };
  }
  const fit = Math.floor(Math.sqrt((width * HEIGHT) / cells));
  const size = Math.min(LARGEST, Math.max(SMALLEST, fit));
  const columns = Math.max(1, Math.floor(width / size));
  return { columns, wide: width / columns, high: size, rows: Math.ceil(cells / columns) };
}

export function strip() {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const cursor = h("i", { class: "cursor", "aria-hidden": "true", hidden: true });
  const slider = h("div", { class: "strip", role: "slider", tabindex: "0", "aria-label": "Task",
    "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0" }, canvas, cursor);
  const reading = h("p");
  const kinds = ["done", "recomputed", "leased", "quarantined", "todo"];
  const counts = legend(kinds.map((kind) => [kind, NAMES[kind]]));
  const table = twin("Tasks of the epoch, in order", ["from", "to", "tasks", "state", "by"]);
  const part = section("tasks", "Tasks", slider, foot(counts.element, reading, table.element));
  let tasks = { runs: [], by: [] };
  let cells = new Uint8Array(0);
  let place = layout(0, 1);
  let painted = null; // the cells as they stand on the canvas

  function draw() {
    const width = slider.clientWidth;
    if (!width) return;
    place = layout(cells.length, width);
    const height = place.rows * place.high;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    style(canvas, "height", `${height}px`);
    painted = null;
    repaint();
  }

  function repaint() {
    const scale = window.devicePixelRatio || 1;
    paint(canvas.getContext("2d"), cells, painted, place, scale);
    painted = cells;
  }

  function point(index) {
    const found = cells.length ? taskAt(tasks, index) : null;
    cursor.hidden = !found;
    reading.classList.toggle("empty", !found);
    if (!found) return;
    const by = found.by ? ` by ${found.by}` : "";
    const text = `Task ${count(index)}: ${NAMES[found.state] || found.state}${by}`;
    say(reading, text);
    setAttribute(slider, "aria-valuenow", index);
    setAttribute(slider, "aria-valuetext", text);
    style(cursor, "left", `${(index % place.columns) * place.wide}px`);
    style(cursor, "top", `${Math.floor(index / place.columns) * place.high}px`);
    style(cursor, "width", `${place.wide}px`);
    style(cursor, "height", `${place.high}px`);
  }

  slider.addEventListener("mousemove", (event) => {
    const box = slider.getBoundingClientRect();
    const column = Math.min(place.columns - 1, Math.floor((event.clientX - box.left) / place.wide));
    const index = Math.floor((event.clientY - box.top) / place.high) * place.columns + column;
    point(index < cells.length && index >= 0 ? index : -1);
  });
  slider.addEventListener("mouseleave", () => point(-1));
  slider.addEventListener("blur", () => point(-1));
  slider.addEventListener("focus", () => point(Number(slider.getAttribute("aria-valuenow"))));
  slider.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: place.columns, ArrowUp: -place.columns,
      PageDown: 100, PageUp: -100, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const index = Number(slider.getAttribute("aria-valuenow")) + steps[event.key];
    point(Math.min(cells.length - 1, Math.max(0, index)));
  });

  return {
    element: part.element,
    keys: ["tasks", "status"],
    resized: draw,
    themed: draw,
    update(state, changed) {
      if (changed.has("tasks")) {
        tasks = state.tasks;
        const before = cells.length;
        cells = expanded(tasks.runs);
        if (painted && before === cells.length) repaint();
        else draw();
        const sums = taskCounts(tasks);
        for (const kind of kinds) say(counts.values[kind], count(sums[kind]));
        setAttribute(slider, "aria-valuemax", Math.max(0, cells.length - 1));
        if (!slider.hasAttribute("aria-valuetext")) setAttribute(slider, "aria-valuetext", "no task");
        table.update(() => tableRows(tasks));
        slider.hidden = !cells.length;
        counts.element.hidden = !cells.length;
        table.element.hidden = !cells.length;
      }
      part.element.hidden = !cells.length && state.status.state !== "starting";
      say(part.remark, remark(state, cells.length));
    },
  };
}

function remark(state, total) {
  if (!total) return "none yet: the data is being counted";
  const epochs = state.status.num_epochs;
  const which = `epoch ${state.tasks.epoch + 1}${epochs ? ` of ${epochs}` : ""}`;
  const sums = taskCounts(state.tasks);
  const done = sums.done + sums.recomputed + sums.quarantined;
  return `${count(total)} in ${which}, ${percent(done, total)} done`;
}

function tableRows(tasks) {
  let from = 0;
  const rows = tasks.runs.slice(0, TABLE_ROWS).map(([state, many], run) => {
    from += many;
    return [count(from - many), count(from - 1), count(many), NAMES[state] || state,
      (tasks.by || [])[run] ?? ""];
  });
  const left = tasks.runs.length - rows.length;
  if (left > 0) rows.push(["…", "", "", `and ${count(left)} more runs`, ""]);
  return rows;
}

// Each state has a shape too: full, full with a stroke, hollow, crossed, faint. Of what stands there
// already (`before`) only the stretches that differ are painted; neighbours that are alike, at once.
function paint(context, cells, before, place, scale) {
  const fills = TASK_STATES.map((name) => themed(`k-${name}`));
  const paper = themed("paper");
  const gap = place.wide >= 5 ? 1 : 0;
  const shaped = place.wide >= 6 && place.high >= 6;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  let index = 0;
  while (index < cells.length) {
    const state = cells[index];
    if (before && before[index] === state) {
      index += 1;
      continue;
    }
    const end = gap ? index + 1 : Math.min(cells.length, (Math.floor(index / place.columns) + 1) * place.columns);
    let next = index + 1;
    while (next < end && cells[next] === state) next += 1;
    const x = (index % place.columns) * place.wide;
    const y = Math.floor(index / place.columns) * place.high;
    const [wide, high] = [(next - index) * place.wide - gap, place.high - gap];
    context.fillStyle = fills[state];
    context.fillRect(x, y, wide, high);
    if (shaped) shape(context, state, paper, x, y, wide, high);
    index = next;
  }
}

function shape(context, state, paper, x, y, wide, high) {
  const kind = TASK_STATES[state];
  if (kind === "leased") {
    context.fillStyle = paper;
    context.fillRect(x + 1.5, y + 1.5, wide - 3, high - 3);
  }
  if (kind !== "recomputed" && kind !== "quarantined") return;
  context.strokeStyle = paper;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x + wide * 0.2, y + high * 0.8);
  context.lineTo(x + wide * 0.8, y + high * 0.2);
  if (kind === "quarantined") {
    context.moveTo(x + wide * 0.2, y + high * 0.2);
    context.lineTo(x + wide * 0.8, y + high * 0.8);
  }
  context.stroke();
}
