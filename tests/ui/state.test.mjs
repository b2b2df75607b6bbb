// The page's pure modules under node alone: `node --test tests/ui/state.test.mjs`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { clock, headline, lasted, percent, short, significant, visible } from "../../dashboard/page/format.js";
import { parsed } from "../../dashboard/page/finite.js";
import { Span } from "../../dashboard/page/span.js";
import {
  applyChange, applySnapshot, blank, deaths, expanded, jobNow, rows, taskAt, taskCounts, thinned,
} from "../../dashboard/page/state.js";

const event = (id, text = `event ${id}`) => ({ id, t: id, text, kind: "other" });
const life = (id, more = {}) =>
  ({ id, role: "worker", index: 0, name: "worker-0", began: 1, ended: null, end: null, ...more });
const snapshot = (more = {}) => ({
  schema: "edl-dashboard-1",
  at: 100,
  live: true,
  health: { level: "good", text: "Trains." },
  status: { state: "running", started_s_ago: 10, loss: 0.5 },
  meter: { applied: 1, total: 9 },
  tasks: { epoch: 0, runs: [["done", 2], ["leased", 1], ["todo", 3]], by: [null, "worker-1", null] },
  incarnations: [life("a")],
  scalars: { loss: [[1, 1, 0.9]] },
  shards: [{ name: "server-0", rows: 3 }],
  events: [event(1), event(2)],
  ...more,
});
const heard = (...more) => {
  const state = blank();
  applySnapshot(state, snapshot(...more));
  return state;
};

test("a change replaces fields of the status and leaves the others", () => {
  const state = heard();
  const changed = applyChange(state, { status: { loss: 0.4 }, meter: { applied: 2 } });
  assert.deepEqual(state.status, { state: "running", started_s_ago: 10, loss: 0.4 });
  assert.deepEqual(state.meter, { applied: 2, total: 9 });
  assert.deepEqual([...changed], ["status", "meter"]);
});

test("an event that is known is not taken twice, in whatever order it comes", () => {
  const state = heard();
  applyChange(state, { events: [event(2), event(4), event(3), event(4)] });
  assert.deepEqual(state.events.map((one) => one.id), [1, 2, 3, 4]);
  assert.equal(applyChange(state, { events: [event(3)] }).has("events"), false);
});

test("a snapshot after a cut keeps the older events, and doubles none", () => {
  const state = heard();
  applySnapshot(state, snapshot({ events: [event(2), event(3)] }));
  assert.deepEqual(state.events.map((one) => one.id), [1, 2, 3]);
});

test("another job of the same name begins with its own events", () => {
  const state = heard();
  applySnapshot(state, snapshot({ events: [{ ...event(1), text: "starting" }] }));
  assert.deepEqual(state.events.map((one) => one.text), ["starting"]);
});

test("events that were let go do not come back", () => {
  const state = heard({ events: [] });
  applyChange(state, { events: Array.from({ length: 2100 }, (_, at) => event(at + 1)) });
  assert.equal(state.events.length, 2000);
  applyChange(state, { events: [event(50)] });
  assert.equal(state.events[0].id, 101);
});

test("incarnations and shards change by their key, and go", () => {
  const state = heard();
  applyChange(state, { incarnations: [life("a", { ended: 5, end: "killed" }), life("b", { began: 7 })] });
  assert.deepEqual(deaths(state).map((one) => one.id), ["a"]);
  assert.deepEqual(rows(state.incarnations)[0].lives.map((one) => one.id), ["a", "b"]);
  applyChange(state, { incarnations: [{ gone: ["a"] }], shards: [{ gone: ["server-0"] }] });
  assert.deepEqual([...state.incarnations.keys()], ["b"]);
  assert.equal(state.shards.size, 0);
});

test("points of a series are appended, and replaced where it was thinned", () => {
  const state = heard();
  applyChange(state, { scalars: { loss: [[2, 2, 0.8]], auc: [[2, 2, 0.6]] } });
  assert.deepEqual(state.scalars.get("loss"), [[1, 1, 0.9], [2, 2, 0.8]]);
  applyChange(state, { scalars: { loss: { reset: true, points: [[9, 9, 0.1]] } } });
  assert.deepEqual(state.scalars.get("loss"), [[9, 9, 0.1]]);
});

test("a series that the server does not thin stays bounded and keeps its peak", () => {
  const state = heard();
  for (let at = 2; at < 5000; at += 1) {
    applyChange(state, { scalars: { loss: [[at, at, at === 777 ? 99 : at % 7]] } });
  }
  const points = state.scalars.get("loss");
  assert.ok(points.length <= 1200);
  assert.ok(points.some((point) => point[2] === 99));
  assert.equal(thinned([[1, 1, null], [2, 2, 3]], 4).length, 2);
});

test("what a newer server adds is left alone, another schema is refused", () => {
  const state = heard();
  assert.equal(applyChange(state, { thinned: { loss: 1 } }).size, 0);
  assert.throws(() => applySnapshot(state, snapshot({ schema: "edl-dashboard-9" })), /load it anew/);
});

test("books that a job does not have are none", () => {
  const state = heard({ meter: null });
  assert.deepEqual(state.meter, {});
  applyChange(state, { meter: { applied: 3 } });
  assert.deepEqual(state.meter, { applied: 3 });
});

test("tasks are counted and found by their place", () => {
  const { tasks } = heard();
  assert.deepEqual(taskCounts(tasks), { todo: 3, leased: 1, done: 2, recomputed: 0, quarantined: 0 });
  assert.deepEqual([...expanded(tasks.runs)], [2, 2, 1, 0, 0, 0]);
  assert.deepEqual(taskAt(tasks, 2), { state: "leased", by: "worker-1" });
  assert.equal(taskAt(tasks, 6), null);
});

test("the job's time goes on while it lives, and stands when it has ended", () => {
  assert.equal(jobNow(heard(), 3), 13);
  assert.equal(jobNow(heard({ live: false }), 3), 10);
});

test("servers stand before workers, and worker 10 after worker 9", () => {
  const named = (role, index) => life(`${role}${index}`, { role, index, name: `${role}-${index}` });
  const state = heard({ incarnations: [named("worker", 10), named("worker", 9), named("server", 0)] });
  assert.deepEqual(rows(state.incarnations).map((row) => row.name), ["server-0", "worker-9", "worker-10"]);
});

test("the span grows in steps and tells of each", () => {
  const span = new Span();
  let told = 0;
  span.listen(() => { told += 1; });
  for (let now = 0; now < 600; now += 0.25) span.tick(now);
  assert.ok(told < 200, `${told} times`);
  assert.ok(span.to >= 600 && span.to <= 620);
  span.follow(60);
  assert.ok(span.from >= 530 && span.from <= 545, `${span.from}`);
  span.choose(100, 200);
  assert.deepEqual([span.from, span.to, span.place(150)], [100, 200, 0.5]);
});

test("numbers are told as they are", () => {
  assert.equal(percent(999999, 1000000), "99.9 %");
  assert.equal(percent(1, 1000000), "< 0.1 %");
  assert.equal(percent(0, 0), "–");
  assert.equal(clock(3753), "1:02:33");
  assert.equal(short(1234567), "1.23 M");
  assert.equal(significant(0.459446), "0.4594");
  assert.equal(significant("0.5"), "–");
});

test("numbers that JSON lacks are put back where the server says", () => {
  const text = JSON.stringify({
    status: { loss: null, "a/b~": null, exit_code: null, metrics: [null] },
    not_finite: { "/status/loss": "nan", "/status/a~1b~0": "-inf", "/status/metrics/0": "inf", "/gone/x": "nan" },
  });
  assert.deepEqual(parsed(text), {
    status: { loss: NaN, "a/b~": -Infinity, exit_code: null, metrics: [Infinity] },
  });
  assert.deepEqual(parsed('{"a": [1, null]}'), { a: [1, null] });
});

test("a measure that is no number is told as that, and what is not there as nothing", () => {
  assert.deepEqual(["NaN", "Infinity", "–", "–"], [NaN, Infinity, null, undefined].map((one) => significant(one)));
  assert.deepEqual(thinned([[1, 1, NaN], [2, 2, 5], [3, 3, Infinity]], 2), [[1, 1, NaN], [2, 2, 5]]);
});

test("what a text would do is told by its number, as on a terminal; lines and tabs stay", () => {
  assert.equal(visible("a\u202egnp\u2066\u200b\x1b[2J\x9b\u2028\ufeff\u{e0001}\n\tb"),
    "a\\u202egnp\\u2066\\u200b\\x1b[2J\\x9b\\u2028\\ufeff\\U000e0001\n\tb");
  assert.equal(visible("Größe 大 ½ – [a] \u00a0e\u0301"), "Größe 大 ½ – [a] \u00a0e\u0301");
  assert.equal(visible(3), "3");
});

test("the headline leaves the command that goes on to what is kept", () => {
  assert.equal(headline("Stopped (edl stop) at record 5; go on with: edl train --resume '/a b/c'."),
    "Stopped (edl stop) at record 5.");
  assert.equal(headline("its master is gone; nothing that was acknowledged is lost: edl train --resume /x."),
    "its master is gone; nothing that was acknowledged is lost.");
  assert.equal(headline("Training, 2 workers at work."), "Training, 2 workers at work.");
});

test("a job that went on lasts as long as its axis, and says how long since", () => {
  assert.deepEqual(lasted(3700, 60), ["1:01:40", "1:00 since it went on"]);
  assert.deepEqual(lasted(61, 60.9), ["1:01", ""]);
  assert.deepEqual(lasted(undefined, 60), ["1:00", ""]);
});
