// The stretch of the job's time that all axes show: pure but for those who are told of a change.
//
// It grows in steps, so that what lies on it is laid out anew seldom: what is still alive reaches to
// its end, and only a veil over the future moves on.

import { timeStep } from "./format.js";

const STEPS = 50; // of the whole span; so at most a fiftieth of it is future

export class Span {
  constructor() {
    this.now = 0;
    this.last = null; // show only so many seconds
    this.fixed = null; // [from, to] that somebody has chosen
    this.from = 0;
    this.to = 10;
    this.listeners = [];
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  tick(now) {
    this.now = now;
    this.settle();
  }

  // The last `seconds`, or all where it is null.
  follow(seconds) {
    this.fixed = null;
    this.last = seconds;
    this.settle();
  }

  choose(from, to) {
    this.fixed = to - from >= 0.5 ? [Math.max(0, from), to] : null;
    this.settle();
  }

  settle() {
    const shown = this.last === null ? this.now : Math.min(this.last, this.now);
    const step = timeStep(Math.max(shown, 10), STEPS);
    let to = Math.max(10, Math.ceil((this.now + step * 0.2) / step) * step);
    let from = this.last === null ? 0 : Math.max(0, to - this.last - step);
    if (this.fixed) [from, to] = this.fixed;
    if (from === this.from && to === this.to) return;
    this.from = from;
    this.to = to;
    this.listeners.forEach((listener) => listener(this));
  }

  // Where a moment lies, 0 at the left edge and 1 at the right one.
  place(t) {
    return (t - this.from) / (this.to - this.from);
  }

  ticks(most) {
    const step = timeStep(this.to - this.from, most);
    const ticks = [];
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) ticks.push(t);
    return ticks;
  }
}
