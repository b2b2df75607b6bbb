// The list of jobs with elements that are no browser's: `node --test tests/ui/list.test.mjs`.

import assert from "node:assert/strict";
import { test } from "node:test";

class Element {
  constructor() {
    this.children = [];
    this.attributes = {};
    this.hidden = false;
    this.textContent = "";
  }

  setAttribute(name, value) {
    this.attributes[name] = String(value);
    if (name === "hidden") this.hidden = true;
  }

  getAttribute(name) {
    return this.attributes[name] ?? null;
  }

  append(...children) {
    this.children.push(...children);
  }

  addEventListener() {}

  get firstElementChild() {
    return this.children[0] ?? null;
  }

  get lastElementChild() {
    return this.children[this.children.length - 1] ?? null;
  }

  find(name) {
    if (this.attributes.class === name) return this;
    return this.children.map((child) => child.find?.(name)).find(Boolean) ?? null;
  }
}

globalThis.document = { createElement: () => new Element() };
const { jobList } = await import("../../dashboard/page/jobs.js");

test("that no job is here is said once the list has come, and not before", () => {
  const list = jobList();
  const [none, scroll] = [list.element.find("none"), list.element.find("scroll")];
  const says = list.element.find("health").lastElementChild;

  assert.deepEqual([none.hidden, scroll.hidden, says.textContent], [true, true, "Waits for the list of jobs…"]);
  list.update([]);
  assert.deepEqual([none.hidden, scroll.hidden, says.textContent], [false, true, "No jobs"]);
});
