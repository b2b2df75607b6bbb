// The line to the server: one stream of events that comes back by itself, and plain requests.
//
// The browser repeats a stream that was cut, with the id of the last event it had. Where it gives up
// (the server answered with an error) we begin anew, seldomer each time. A page that nobody looks at
// lets its stream go after a while: a browser has few lines to one server.

import { parsed } from "./finite.js";

const FIRST_MS = 500;
const LONGEST_MS = 10000;
const HIDDEN_MS = 60000;

// `plain`: where the same is told once; it says why there is no stream. `changed`: the line was lost,
// refused, or is there again.
export function stream(path, plain, names, heard, changed) {
  let refused = "";
  let source = null;
  let since = null; // when the line was lost
  let wait = FIRST_MS;
  let timer = null;
  let hidden = null;
  let closed = false;

  function open() {
    clearTimeout(timer);
    if (closed) return;
    source = new EventSource(path);
    source.onopen = found;
    source.onerror = lost;
    for (const name of names) {
      source.addEventListener(name, (event) => {
        found();
        heard(name, parsed(event.data));
      });
    }
  }

  function found() {
    const news = since !== null;
    since = null;
    refused = "";
    wait = FIRST_MS;
    if (news) changed();
  }

  async function lost() {
    since = since ?? performance.now();
    changed();
    if (source.readyState !== EventSource.CLOSED) return;
    timer = setTimeout(open, wait);
    wait = Math.min(LONGEST_MS, wait * 2);
    try {
      const response = await fetch(plain);
      if (response.status >= 400 && response.status < 500) {
        refused = reason(await response.text(), response);
      }
    } catch {
      refused = ""; // nobody answers: the line is lost, which is said already
    }
    changed();
  }

  function seen() {
    clearTimeout(hidden);
    if (document.hidden) hidden = setTimeout(() => source.close(), HIDDEN_MS);
    else if (source.readyState === EventSource.CLOSED) open();
  }

  document.addEventListener("visibilitychange", seen);
  open();
  return {
    get lost() {
      return since === null ? null : (performance.now() - since) / 1000;
    },
    get refused() {
      return refused;
    },
    close() {
      closed = true;
      clearTimeout(timer);
      clearTimeout(hidden);
      document.removeEventListener("visibilitychange", seen);
      source.close();
    },
  };
}

export async function getText(path) {
  const response = await fetch(path);
  const text = await response.text();
  if (!response.ok) throw new Error(reason(text, response));
  return text;
}

export async function act(job, body) {
  const response = await fetch(`api/jobs/${encodeURIComponent(job)}/actions`, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      "X-EDL-CSRF": document.querySelector("meta[name='edl-csrf']").content,
    },
    body: JSON.stringify(body),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(reason(text, response));
  return field(text, ["message"]);
}

function reason(text, response) {
  return field(text, ["error", "detail"]) || text.slice(0, 300) || `the server answered ${response.status}`;
}

function field(text, names) {
  try {
    const told = JSON.parse(text);
    return names.map((name) => told?.[name]).find((value) => typeof value === "string") || "";
  } catch {
    return "";
  }
}
