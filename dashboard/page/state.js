// What the page knows of one job, and how a snapshot and a change alter it.
//
// Pure: no document, no clock, no network, so that node alone can test it. `applySnapshot` and
// `applyChange` alter the state in place and return the names of what is different now.

export const SCHEMA = "edl-dashboard-1";

// Tasks by state, in the order of their legend; a number in a strip is an index of this.
export const TASK_STATES = ["todo", "leased", "done", "recomputed", "quarantined"];

const EVENTS_KEPT = 2000;
const POINTS_KEPT = 1200; // of a series that the server does not thin
const POINTS_LEFT = 600;

const REPLACED = [
  "at", "heard_s", "live", "health", "tasks", "teaching", "schedule", "cost", "actions",
];
const BY_FIELD = ["status", "meter", "goodput"];
const BY_KEY = { incarnations: "id", shards: "name" };

export function blank() {
  return {
    at: 0,
    heard_s: null,
    live: false,
    health: { level: "", text: "" },
    status: {},
    meter: {},
    tasks: { epoch: 0, runs: [], by: [] },
    incarnations: new Map(),
    scalars: new Map(),
    goodput: {},
    shards: new Map(),
    events: [],
    forgotten: 0, // the highest id of an event that was let go
    teaching: null,
    schedule: null,
    cost: null,
    actions: [],
  };
}

// A snapshot says all; only the events that it leaves out, being older, are kept from before.
export function applySnapshot(state, snapshot) {
  if (snapshot.schema !== SCHEMA) {
    throw new Error(`The server speaks ${snapshot.schema}, this page ${SCHEMA}: load it anew.`);
  }
  const before = state.events;
  const newest = Math.max(0, ...(snapshot.events || []).map((event) => event.id));
  const another = before.length > 0 && newest < before[before.length - 1].id;
  const fresh = blank();
  if (!another) {
    fresh.events = before;
    fresh.forgotten = state.forgotten;
  }
  Object.assign(state, fresh);
  applyChange(state, snapshot);
  return new Set(Object.keys(fresh));
}

export function applyChange(state, change) {
  const changed = new Set();
  for (const name of Object.keys(change)) {
    const value = change[name];
    if (REPLACED.includes(name)) {
      state[name] = value;
    } else if (BY_FIELD.includes(name)) {
      state[name] = value === null ? {} : { ...state[name], ...value };
    } else if (name in BY_KEY) {
      merge(state[name], value, BY_KEY[name]);
    } else if (name === "scalars") {
      for (const series of Object.keys(value)) extend(state.scalars, series, value[series]);
    } else if (name === "events") {
      if (!addEvents(state, value)) continue;
    } else {
      continue; // a newer server's
    }
    changed.add(name);
  }
  return changed;
}

function merge(entries, told, key) {
  const list = Array.isArray(told) ? told : [...(told.changed || []), { gone: told.gone }];
  for (const entry of list) {
    if (entry.gone) entry.gone.forEach((id) => entries.delete(id));
    else if (entry[key] !== undefined) entries.set(entry[key], entry);
  }
}

function extend(scalars, name, told) {
  const whole = !Array.isArray(told);
  const before = (!whole && scalars.get(name)) || [];
  const points = before.concat(whole ? told.points || [] : told);
  scalars.set(name, points.length > POINTS_KEPT ? thinned(points, POINTS_LEFT) : points);
}

// The lowest and the highest of each of so many pieces, so that no peak is lost.
export function thinned(points, count) {
  const size = points.length / (count / 2);
  const value = (point) => (Number.isFinite(point[2]) ? point[2] : 0); // of one that is no number nothing is known
  const kept = [];
  for (let piece = 0; piece < count / 2; piece += 1) {
    const part = points.slice(Math.floor(piece * size), Math.floor((piece + 1) * size));
    if (!part.length) continue;
    let low = 0;
    let high = 0;
    part.forEach((point, index) => {
      if (value(point) < value(part[low])) low = index;
      if (value(point) > value(part[high])) high = index;
    });
    const [first, second] = [Math.min(low, high), Math.max(low, high)];
    kept.push(part[first]);
    if (second !== first) kept.push(part[second]);
  }
  return kept;
}

// Events come again after a stream was cut: an id that is known is not taken twice.
function addEvents(state, events) {
  const known = new Set(state.events.map((event) => event.id));
  const added = events.filter((event) => {
    if (known.has(event.id) || event.id <= state.forgotten) return false;
    known.add(event.id);
    return true;
  });
  if (!added.length) return false;
  const all = state.events.concat(added).sort((a, b) => a.id - b.id);
  if (all.length > EVENTS_KEPT) {
    const gone = all.splice(0, all.length - EVENTS_KEPT);
    state.forgotten = gone[gone.length - 1].id;
  }
  state.events = all;
  return true;
}

// -- what is read out of a state

export const ENDED = ["done", "failed", "stopped", "dead", "cancelled"];

export function hasEnded(state) {
  return state.health.level === "ended" || ENDED.includes(state.status.state);
}

// The seconds since the job's start, `since` seconds after the state was heard.
export function jobNow(state, since) {
  const lives = [...state.incarnations.values()];
  const last = lives.reduce((latest, one) => Math.max(latest, one.ended ?? one.began), 0);
  if (lives.length && lives.every((one) => one.ended != null)) return last;
  return Math.max(state.status.started_s_ago || 0, last) + (state.live ? since : 0);
}

// Ends that were no one's wish: they are marked on every axis of time.
export function deaths(state) {
  return [...state.incarnations.values()]
    .filter((one) => one.ended !== null && one.ended !== undefined && isDeath(one.end))
    .sort((a, b) => a.ended - b.ended);
}

export function isDeath(end) {
  return end === "killed" || end === "failed" || end === "preempted";
}

export function taskCounts(tasks) {
  const counts = Object.fromEntries(TASK_STATES.map((name) => [name, 0]));
  for (const [name, count] of tasks.runs) counts[name] = (counts[name] || 0) + count;
  return counts;
}

// One number a task, an index of TASK_STATES.
export function expanded(runs) {
  const total = runs.reduce((sum, run) => sum + run[1], 0);
  const cells = new Uint8Array(total);
  let at = 0;
  for (const [name, count] of runs) {
    cells.fill(Math.max(0, TASK_STATES.indexOf(name)), at, at + count);
    at += count;
  }
  return cells;
}

// The run that a task is in: its state, and who has it where that is known.
export function taskAt(tasks, index) {
  let at = 0;
  for (let run = 0; run < tasks.runs.length; run += 1) {
    at += tasks.runs[run][1];
    if (index < at) return { state: tasks.runs[run][0], by: (tasks.by || [])[run] ?? null };
  }
  return null;
}

const ROLES = ["master", "server", "worker", "teacher"];

// The processes by name, each with its incarnations in time, in the order they are shown in.
export function rows(incarnations) {
  const found = new Map();
  for (const one of incarnations.values()) {
    if (!found.has(one.name)) {
      found.set(one.name, { name: one.name, role: one.role, index: one.index ?? 0, lives: [] });
    }
    found.get(one.name).lives.push(one);
  }
  const place = (role) => (ROLES.includes(role) ? ROLES.indexOf(role) : ROLES.length);
  const sorted = [...found.values()].sort(
    (a, b) => place(a.role) - place(b.role) || a.index - b.index || (a.name < b.name ? -1 : 1),
  );
  sorted.forEach((row) => row.lives.sort((a, b) => a.began - b.began));
  return sorted;
}
