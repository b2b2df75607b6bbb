// Loss and metrics on the same axis of time as the incarnations, with the deaths marked on them.
//
// uPlot draws; all that is read (names, values, marks) is text beside it.

import { clock, count, significant } from "./format.js";
import { h, keyed, say, section, setAttribute, style, themed, twin } from "./dom.js";
import { deaths } from "./state.js";

const SHOWN = 4; // charts that are there from the beginning
const SMOOTHED_FROM = 80; // points: fewer are shown as they are
const POINTS_UNTIL = 60; // so few are dots too
const TABLE_ROWS = 300;

export function charts(span) {
  const grid = h("div", { class: "charts" });
  const more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => {
    everything = true;
    update(state);
  } });
  const axes = ["time", "version"].map((name) => h("button", {
    type: "button",
    text: `by ${name}`,
    "aria-pressed": String(name === "time"),
    onclick: () => by(name),
  }));
  const tools = h("div", { class: "tools" },
    h("div", { class: "choice", role: "group", "aria-label": "Axis" }, ...axes));
  const part = section("charts", "Loss and metrics", tools, grid, more);
  const shared = { span, axis: "time", faults: [], versions: [], reach: [0, 1] };
  const known = new Map();
  let everything = false;
  let state = null;

  function by(name) {
    shared.axis = name;
    axes.forEach((button) => setAttribute(button, "aria-pressed", String(button.textContent === `by ${name}`)));
    for (const element of known.values()) element.chart.rebuild();
  }

  function update(now) {
    state = now;
    shared.faults = deaths(state);
    shared.versions = state.scalars.get("loss") || [...state.scalars.values()][0] || [];
    const names = [...state.scalars.keys()].sort((a, b) => (b === "loss") - (a === "loss") || (a < b ? -1 : 1));
    const drawn = everything ? names : names.slice(0, SHOWN);
    keyed(grid, drawn, known, (name) => {
      const chart = one(name, shared);
      chart.element.chart = chart;
      return chart.element;
    });
    const versions = drawn.flatMap((name) => state.scalars.get(name).map((point) => point[0]));
    const least = versions.reduce((low, version) => Math.min(low, version), Infinity);
    shared.reach = [least, versions.reduce((high, version) => Math.max(high, version), least + 1)];
    for (const name of drawn) known.get(name).chart.update(state.scalars.get(name));
    more.hidden = drawn.length === names.length;
    say(more, `show ${count(names.length - drawn.length)} more`);
    const thick = drawn.some((name) => state.scalars.get(name).length >= SMOOTHED_FROM);
    say(part.remark, !names.length ? "none yet: the first comes with the first steps"
      : thick ? "thin: as told, thick: smoothed" : "");
    tools.hidden = !names.length;
  }

  const each = (what) => () => {
    for (const element of known.values()) element.chart[what]();
  };
  span.listen(each("redraw"));
  return {
    element: part.element,
    keys: ["scalars", "incarnations"],
    update,
    resized: each("resize"),
    themed: each("rebuild"),
  };
}

function one(name, shared) {
  const reading = h("span", { class: "reading" });
  const holder = h("div", { class: "plot", role: "slider", tabindex: "0", "aria-label": `${name}, over time`,
    "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0", "aria-valuetext": "no value yet" });
  const tag = h("span", { class: "tag" });
  const table = twin(`${name} by version`, ["version", "time", name]);
  const element = h("figure", { class: "chart", "data-series": name },
    h("figcaption", {}, h("h3", { text: name }), reading),
    h("div", { class: "plot-box" }, holder, tag), table.element);
  let points = [];
  let sorted = []; // as they are drawn
  let plot = null;

  function data() {
    const column = shared.axis === "time" ? 1 : 0;
    sorted = points.slice().sort((a, b) => a[column] - b[column]);
    const values = sorted.map((point) => (Number.isFinite(point[2]) ? point[2] : null)); // null: a gap
    return [sorted.map((point) => point[column]), values, smoothed(values)];
  }

  function read(plot, index) {
    const x = plot.data[0][index];
    const text = x === undefined || index === null ? "" : `${at(x, shared.axis)}: ${significant(sorted[index]?.[2])}`;
    say(reading, text);
    if (text && document.activeElement === holder) {
      setAttribute(holder, "aria-valuenow", index);
      setAttribute(holder, "aria-valuetext", text);
    }
  }

  function label(plot) {
    const values = plot.data[2][plot.data[2].length - 1] == null ? plot.data[1] : plot.data[2];
    const last = values[values.length - 1];
    tag.hidden = last === null || last === undefined;
    if (tag.hidden) return;
    say(tag, significant(last));
    const y = plot.valToPos(last, "y");
    const { top, height } = plot.bbox; // not of the element: see splits
    style(tag, "top", `${Math.min(Math.max(y, 0), height / devicePixelRatio) + top / devicePixelRatio}px`);
  }

  function build() {
    if (plot) plot.destroy();
    plot = null;
    if (!holder.clientWidth) return;
    plot = new window.uPlot(options(holder, shared, points.length, read, label), data(), holder);
  }

  holder.addEventListener("dblclick", () => shared.span.follow(null));
  holder.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity };
    if (!plot || !plot.data[0].length || !(event.key in steps)) return;
    event.preventDefault();
    const last = plot.data[0].length - 1;
    const index = Math.min(last, Math.max(0, (plot.cursor.idx ?? last) + steps[event.key]));
    const left = plot.valToPos(plot.data[0][index], "x");
    plot.setCursor({ left, top: plot.over.clientHeight / 2 });
  });
  return {
    element,
    update(told) {
      const shape = (list) => `${list.length >= SMOOTHED_FROM} ${list.length < POINTS_UNTIL}`;
      const same = plot && shape(points) === shape(told);
      points = told;
      setAttribute(holder, "aria-valuemax", Math.max(0, points.length - 1));
      table.update(() => points.slice(-TABLE_ROWS).reverse().map((point) =>
        [count(point[0]), clock(point[1]), significant(point[2], 6)]));
      if (same) plot.setData(data());
      else build();
    },
    rebuild: build,
    redraw: () => plot && plot.setData(plot.data),
    resize() {
      if (!plot) build();
      else plot.setSize({ width: holder.clientWidth, height: holder.clientHeight });
    },
  };
}

const at = (x, axis) => (axis === "time" ? clock(x) : `version ${count(x)}`);

function options(holder, shared, points, read, label) {
  const gutter = (side) => parseFloat(getComputedStyle(holder).getPropertyValue(`--gutter-${side}`));
  const font = `11px ${getComputedStyle(holder).fontFamily}`;
  const faint = themed("line");
  const axis = { stroke: themed("ink-2"), font, grid: { stroke: faint, width: 1 }, ticks: { show: false } };
  const time = shared.axis === "time";
  const thick = points >= SMOOTHED_FROM;
  const dots = { show: points < POINTS_UNTIL, size: 5, fill: themed("line-1") };
  return {
    width: holder.clientWidth,
    height: holder.clientHeight,
    padding: [8, gutter("right"), 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      sync: { key: `edl-${shared.axis}` },
      drag: { x: time, y: false, setScale: false },
      points: { size: 7, fill: themed("line-1") },
    },
    scales: { x: { time: false, range: () => (time ? [shared.span.from, shared.span.to] : shared.reach) } },
    axes: [
      { ...axis, size: 24, gap: 4, space: 70, values: (_, ticks) => ticks.map((x) => (time ? clock(x) : count(x))),
        // not the element's width: to ask for it would have the whole page laid out, each time
        splits: time ? (plot) => shared.span.ticks(Math.max(2, plot.bbox.width / devicePixelRatio / 90 || 8)) : undefined },
      { ...axis, size: gutter("left"), gap: 8, space: 32, values: (_, ticks) => ticks.map((y) => significant(y, 3)) },
    ],
    series: [
      {},
      { stroke: themed(thick ? "line-1-faint" : "line-1"), width: thick ? 1 : 1.75, points: dots },
      { stroke: themed("line-1"), width: 2, show: thick, points: { show: false } },
    ],
    hooks: {
      drawAxes: [(plot) => marks(plot, shared)],
      draw: [label],
      setCursor: [(plot) => read(plot, plot.cursor.left < 0 ? null : plot.cursor.idx)],
      setSelect: [(plot) => choose(plot, shared.span)],
    },
  };
}

// A line through the chart at each death, with a cross on it.
function marks(plot, shared) {
  const { ctx, bbox } = plot;
  const scale = window.devicePixelRatio || 1;
  ctx.save();
  ctx.strokeStyle = themed("fault");
  ctx.lineWidth = scale;
  for (const one of shared.faults) {
    const x = shared.axis === "time" ? one.ended : versionAt(shared.versions, one.ended);
    const left = x === null ? -1 : plot.valToPos(x, "x", true);
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    const [top, size] = [bbox.top + 4 * scale, 3 * scale];
    ctx.globalAlpha = 0.45;
    ctx.setLineDash([3 * scale, 3 * scale]);
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.moveTo(left - size, top - size);
    ctx.lineTo(left + size, top + size);
    ctx.moveTo(left + size, top - size);
    ctx.lineTo(left - size, top + size);
    ctx.stroke();
  }
  ctx.restore();
}

// The newest version that was told of before a moment.
function versionAt(points, t) {
  let found = null;
  for (const [version, time] of points) {
    if (time > t) break;
    found = version;
  }
  return found;
}

function choose(plot, span) {
  const { left, width } = plot.select;
  if (width > 4) span.choose(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
}

// The mean that forgets, without the bias of its begin. null where there is too little.
export function smoothed(values) {
  if (values.length < SMOOTHED_FROM) return values.map(() => null);
  const keep = 1 - 2 / (values.length / 24 + 1);
  let [sum, weight] = [0, 0];
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return sum / weight;
  });
}
