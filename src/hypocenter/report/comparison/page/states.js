// What the parts of the page share: its data, the states a row can be in, numbers as words. Plain ES, no build step.
// @ts-check
"use strict";
(() => {
  /** @typedef {{path: string, shown: string, kind: string, where: string, isPart: boolean}} Cell */
  /** @typedef {{parent: number, depth: number, sides: (Cell | null)[], nLone: number[], lone: string[][], children: number[], pairs: number[]}} Line */
  /** @typedef {{phase: string, left: string, right: string, by: string, layout: string, why: string, certainty: number, lines: number[], label: string, sizes: number[]}} Pair */
  /** @typedef {{pair: number, code: number, error: number | null, low: number | null, high: number | null, floor: number, source: string, samples: number, step: number, microbatch: number, depth: string, cosine: number | null, scale: number | null, dtypes: string[], shapes: string[], times: number}} Row */
  /** @typedef {{own: number, below: number, nRows: number, nDiffer: number, nLone: number, worst: number, parts: number[], partsBelow: number[]}} State */
  /** @typedef {{name: string, about: string, rows: Row[], states: State[], first: number, firstStep: number}} View */
  /** @typedef {{side: number, phase: string, name: string, line: number}} Lone */
  /** @typedef {{limits: Record<string, number>, lines: Line[], pairs: Pair[], lone: Lone[], nLone: number, views: View[]}} Data */

  const EQUAL = 0, WITHIN = 1, UNCLEAR = 2, DIFFERS = 3, UNMATCHED = 4;
  const GLYPHS = ["=", "≈", "?", "≠", "∅"];
  const NAMES = ["equal", "within noise", "cannot tell", "differs", "unmatched"];
  const CLASSES = ["equal", "within", "unclear", "differs", "unmatched"];
  const PARTS = ["parameters and optimizer state", "forward", "backward and gradients"];
  const ZERO_GAP = 3; // powers of two below the least exponent drawn, where errors of zero are

  /** @param {any} value @returns {any} what Python wrote: "Infinity" and "NaN" as text */
  const number = (value) => (typeof value === "string" ? Number(value) : value);

  /** @param {any} raw what hypocenter.report.comparison.page.payload packed @returns {Data} */
  function read(raw) {
    const cell = (/** @type {any} */ c) => c && { path: c[0], shown: c[1], kind: c[2], where: c[3], isPart: c[4] };
    /** @type {Line[]} */
    const lines = raw.lines.map((/** @type {any} */ l) => ({ parent: l[0], depth: l[1], sides: [cell(l[2]), cell(l[3])], nLone: l[4], lone: l[5], children: [], pairs: [] }));
    lines.forEach((line, at) => { if (line.parent >= 0) lines[line.parent].children.push(at); });
    /** @type {Pair[]} */
    const pairs = raw.pairs.map((/** @type {any} */ p) => ({ phase: p[0], left: p[1], right: p[2], by: p[3], layout: p[4], why: p[5], certainty: p[6], lines: p[7], label: p[8], sizes: p[9] }));
    pairs.forEach((pair, at) => pair.lines.forEach((line) => lines[line].pairs.push(at)));
    const row = (/** @type {any} */ r) => {
      const error = number(r[2]), floor = number(r[5]);
      const times = error === null || error === 0 ? 0 : floor && r[6] !== "none" ? error / floor : Infinity;
      return { pair: r[0], code: r[1], error, low: number(r[3]), high: number(r[4]), floor, source: r[6], samples: r[7], step: r[8], microbatch: r[9], depth: r[10], cosine: number(r[11]), scale: number(r[12]), dtypes: [r[13], r[14]], shapes: [r[15], r[16]], times };
    };
    const views = raw.views.map((/** @type {any} */ v) => ({
      name: v.name, about: v.about, first: v.first, firstStep: v.first_step, rows: v.rows.map(row),
      states: v.states.map((/** @type {any} */ s) => ({ own: s[0], below: s[1], nRows: s[2], nDiffer: s[3], nLone: s[4], worst: s[5], parts: s[6], partsBelow: s[7] })),
    }));
    return { limits: raw.limits, lines, pairs, lone: raw.lone.map((/** @type {any} */ l) => ({ side: l[0], phase: l[1], name: l[2], line: l[3] })), nLone: raw.n_lone, views };
  }

  /** A relative error as a power of two, as the terminal says it. @param {number | null} value */
  function power(value) {
    if (value === null || value === undefined) return "?";
    if (value === 0) return "0";
    if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : "inf";
    return value < 64 ? `2^${Math.round(Math.log2(value))}` : value.toPrecision(3);
  }

  /** The noise floor of a row in words. @param {Row} row */
  const floorOf = (row) => (row.source === "none" ? "–" : power(row.floor));

  /** @param {number} value */
  const times = (value) => (value === 0 ? "" : !Number.isFinite(value) ? "∞" : value < 0.1 ? "<0.1" : value < 10 ? value.toFixed(1) : value < 1e6 ? Math.round(value).toLocaleString("en") : value.toExponential(1).replace("e+", "e"));

  // @ts-ignore for the scripts after this one
  window.hypocenterDiff = { EQUAL, WITHIN, UNCLEAR, DIFFERS, UNMATCHED, GLYPHS, NAMES, CLASSES, PARTS, ZERO_GAP, floorOf, power, read, times };
})();
