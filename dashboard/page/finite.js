// JSON with its numbers put back: it has neither NaN nor infinities, so the server sends null for
// them, and says beside, by JSON Pointer, which they were (common/finite.py).

const NUMBERS = { nan: NaN, inf: Infinity, "-inf": -Infinity };

export function parsed(text) {
  const told = JSON.parse(text);
  const found = told?.not_finite;
  if (!found) return told;
  delete told.not_finite;
  for (const [pointer, word] of Object.entries(found)) {
    const path = pointer.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
    const last = path.pop();
    const place = path.reduce((value, part) => value?.[part], told);
    if (place && Object.hasOwn(place, last) && place[last] === null) place[last] = NUMBERS[word];
  }
  return told;
}
