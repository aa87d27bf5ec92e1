// The page's own code: unpacks the grids, draws the heat maps, and charts what is clicked. Plain ES, no build step.
// @ts-check
"use strict";
(() => {
  // @ts-ignore the vendored scripts before this one define these
  const { html, render, useEffect, useMemo, useRef, useState } = window.htmPreact, Plot = window.uPlot;
  // @ts-ignore drawing.js defines it
  const page = window.hypocenterPage, { colourVar, frame, gunzip, short, strike, useLayout } = page;

  /** @typedef {{site: string, port: string, call: number, phase: string, op: string, dtype: string, measure: string, top: number}} Row */
  /** @typedef {Record<string, number[]>} Carried log2 of the loss scale that the values of a phase contain, per step */
  /** @typedef {{title: string, about: string, marks: [number, number][], first: number, carried: Carried, packed_meta: string, packed_codes: string}} Packed */
  /** @typedef {{title: string, about: string, marks: [number, number][], first: number, carried: Carried, steps: number[], until: number, rows: Row[], codes: Uint8Array, from: number[], place: Map<number, number>, shift: Carried, medians: number[]}} Panel
   * `until`: last step that its last column may stand for;
   * `from`: which row of the whole panel each one is, of several the first; `place`: the other way; `shift`: bits to add to what was recorded;
   * `medians`: log2 of what each row usually is */
  /** @typedef {{format: string, phase: string, log2Scale: number | null, find: string, depth: number | null, span: [number, number] | null}} Show
   * `depth`: name parts that rows are merged by, 0 for none, null for what fits; `span`: first and last step shown, null for all */
  /** @typedef {{panel: number, row: number}} Pick */

  const DATA = JSON.parse(/** @type {HTMLElement} */ (document.getElementById("data")).textContent || "{}");
  const MISSING = 0, ZERO = 1, HIGHEST = 254, NOT_FINITE = 255; // hypocenter.report.page.payload
  const MOST_BITS = 16; // headroom at which the colour ramp ends
  const RAMP = [[253, 231, 37], [186, 222, 40], [121, 209, 81], [53, 183, 121], [31, 158, 137], [38, 130, 142], [49, 104, 142], [62, 73, 137], [72, 40, 120]]; // viridis, reversed
  const MOST_OFF = 8; // doublings away from its median at which a norm's colour ends
  const ABOVE = [[255, 236, 160], [254, 204, 92], [222, 158, 22], [150, 105, 0]], BELOW = [[198, 219, 239], [107, 174, 214], [49, 130, 189], [8, 69, 148]];
  const UNLIMITED = -MOST_BITS - 1; // score of a cell whose headroom is unknown: of a format without a limit
  const MOST_LABELLED = 34; // rows that are shown with their names
  const FEW_STEPS = 3; // below this a curve over steps says nothing, and execution order is charted instead
  const VIEW_HEIGHT = 560, ROW_HEIGHT = 16, AXIS_HEIGHT = 30; // CSS pixels
  const FONT = '11.5px ui-monospace, "DejaVu Sans Mono", monospace';

  /** @param {Packed} packed @returns {Promise<Panel>} */
  async function unpack(packed) {
    const meta = JSON.parse(new TextDecoder().decode(await gunzip(packed.packed_meta)));
    const codes = await gunzip(packed.packed_codes);
    const n = meta.steps.length;
    for (let i = 0; i < codes.length; i++) if (i % n) codes[i] = (codes[i] + codes[i - 1]) & 255;
    const from = meta.rows.map((/** @type {unknown} */ _, /** @type {number} */ i) => i);
    const { title, about, marks, first, carried } = packed, place = new Map(from.map((/** @type {number} */ i) => [i, i]));
    return withMedians({ title, about, marks, first, carried, steps: meta.steps, until: Infinity, rows: meta.rows, codes, from, place, shift: {}, medians: [] });
  }

  /** @param {Panel} panel @returns {Panel} */
  function withMedians(panel) {
    const medians = panel.rows.map((_, r) => {
      const known = panel.steps.map((_, c) => log2At(panel, r, c)).filter((v) => v !== null && Number.isFinite(v)).sort((a, b) => /** @type {number} */ (a) - /** @type {number} */ (b));
      return known.length ? /** @type {number} */ (known[known.length >> 1]) : NaN;
    });
    return { ...panel, medians };
  }

  /** The rows that are asked for, with gradients as if the loss scale were another; all of them if none fits.
   * @param {Panel} panel @param {Show} show @returns {Panel} */
  function viewOf(panel, show) {
    const { log2Scale } = show, words = show.find.toLowerCase().split(" ").filter(Boolean);
    const shift = log2Scale === null ? {} : Object.fromEntries(Object.entries(panel.carried).map(([name, had]) => [name, had.map((bits) => log2Scale - bits)]));
    const fits = (/** @type {Row} */ row) => (!show.phase || row.phase === show.phase) && words.every((word) => `${row.site} ${row.port} ${row.op} ${row.phase}`.toLowerCase().includes(word));
    const chosen = panel.from.filter((r) => fits(panel.rows[r]));
    const rows = chosen.length ? chosen : panel.from;
    return cut(merged({ ...panel, shift }, rows, show.depth ?? fittingDepth(panel, rows)), show.span);
  }

  /** Name parts by which rows are merged so that every row has its name beside it; 0 if all have. @param {Panel} panel @param {number[]} chosen */
  function fittingDepth(panel, chosen) {
    if (chosen.length <= MOST_LABELLED) return 0;
    const deepest = Math.max(...chosen.map((r) => panel.rows[r].site.split(".").length));
    for (let depth = deepest - 1; depth > 1; depth--) if (groupsOf(panel, chosen, depth).size <= MOST_LABELLED) return depth;
    return 1;
  }

  /** The columns of some steps. @param {Panel} panel @param {[number, number] | null} span @returns {Panel} */
  function cut(panel, span) {
    if (!span || span[1] < panel.steps[0] || span[0] > panel.steps[panel.steps.length - 1]) return panel;
    const n = panel.steps.length, [first, last] = span;
    const from = Math.max(0, panel.steps.findLastIndex((step) => step <= first)), to = Math.max(from, panel.steps.findLastIndex((step) => step <= last)) + 1;
    const codes = new Uint8Array(panel.rows.length * (to - from));
    panel.rows.forEach((_, r) => codes.set(panel.codes.subarray(r * n + from, r * n + to), r * (to - from)));
    const marks = panel.marks.filter(([, c]) => c >= from && c < to).map(([r, c]) => /** @type {[number, number]} */ ([r, c - from]));
    return { ...panel, steps: panel.steps.slice(from, to), until: to < n ? panel.steps[to] - 1 : Infinity, codes, marks };
  }

  /** Rows by what they are shown as: each by itself, or those of a module together; one with a finding stays alone.
   * @param {Panel} panel @param {number[]} chosen @param {number} depth @returns {Map<string, number[]>} */
  function groupsOf(panel, chosen, depth) {
    const alone = new Set(panel.marks.map(([r]) => r)), groups = new Map();
    for (const r of chosen) {
      const { phase, site, measure } = panel.rows[r], key = depth && !alone.has(r) ? [phase, measure, ...site.split(".").slice(0, depth)].join("\n") : String(r);
      groups.set(key, [...(groups.get(key) || []), r]);
    }
    return groups;
  }

  /** Some rows, those of one module as one: the largest magnitude of all. @param {Panel} panel @param {number[]} chosen @param {number} depth @returns {Panel} */
  function merged(panel, chosen, depth) {
    const groups = groupsOf(panel, chosen, depth), n = panel.steps.length;
    const members = [...groups.values()], codes = new Uint8Array(members.length * n), rows = members.map(([r]) => panel.rows[r]);
    const isShifted = Object.keys(panel.shift).length > 0;
    members.forEach((group, i) => {
      if (group.length === 1 && !isShifted) return codes.set(panel.codes.subarray(group[0] * n, (group[0] + 1) * n), i * n);
      const worst = panel.steps.map((_, c) => group.map((r) => log2At(panel, r, c)).reduce((a, b) => (a === null || (b !== null && b > a) ? b : a)));
      const top = worst.reduce((/** @type {number} */ a, b) => (b !== null && Number.isFinite(b) && b > a ? b : a), -Infinity);
      const name = rows[i].site.split(".").slice(0, depth).join(".");
      rows[i] = { ...rows[i], top: Number.isFinite(top) ? top : 0, ...(group.length > 1 ? { site: name ? `${name}.*` : "(outside of modules)", port: `${group.length} rows`, op: "", call: 0 } : {}) };
      worst.forEach((v, c) => { codes[i * n + c] = v === null ? MISSING : v === -Infinity ? ZERO : v === Infinity ? NOT_FINITE : Math.max(ZERO + 1, Math.round(HIGHEST - (top - v) * 4)); });
    });
    const place = new Map(members.flatMap((group, i) => group.map((r) => /** @type {[number, number]} */ ([r, i]))));
    const marks = panel.marks.filter(([r]) => place.has(r)).map(([r, c]) => /** @type {[number, number]} */ ([place.get(r), c]));
    return withMedians({ ...panel, shift: {}, marks, codes, place, from: members.map(([r]) => r), rows });
  }

  /** Whether a loss scale multiplies it, in a phase of gradients: not what backward computes from values of forward alone. @param {Row} row */
  const isScaled = (row) => row.measure !== "norm" && !(row.phase === "backward" && row.port.startsWith("out["));

  /** log2 of the largest magnitude: null when not recorded, -Infinity for all zero, Infinity when not finite.
   * @param {Panel} panel @param {number} r @param {number} c @returns {number | null} */
  function log2At(panel, r, c) {
    const code = panel.codes[r * panel.steps.length + c];
    if (code === MISSING) return null;
    if (code === ZERO) return -Infinity;
    if (code === NOT_FINITE) return Infinity;
    const row = panel.rows[r], shift = isScaled(row) ? panel.shift[row.phase] : undefined;
    return row.top + (code - HIGHEST) / 4 + (shift ? shift[c] : 0);
  }

  /** @param {Row} row @param {string} format @returns {number | null} log2 of the limit that headroom is counted to */
  const limitOf = (row, format) => (row.measure === "norm" ? null : DATA.log2_limits[format === "own" ? row.dtype : format] ?? null);

  /** A loss scale: large powers of two as such. @param {number} value */
  function scaleText(value) {
    const bits = Math.log2(value);
    if (!Number.isInteger(bits)) return short(value);
    return bits > 16 || bits < -6 ? `2^${bits}` : String(value);
  }

  /** @param {string} hex @returns {number[]} */
  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

  /** A name that fits, cut in its middle: hypocenter.report.wording.shortened. @param {string} text @param {number} most */
  const shortened = (text, most) => {
    const head = Math.floor((most - 1) / 3);
    return text.length <= most ? text : `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
  };

  /** @param {Row} row */
  const OF_BATCHES = { digest: "values", field: "sample" }; // hypocenter.report.wording
  const portOf = (row) => (row.phase === "data" && OF_BATCHES[row.port]) || row.port;
  const nameOf = (row) => `${row.site || "(model)"}${row.call ? ` call ${row.call}` : ""} ${row.op ? row.op.replace(/^aten\./, "") : portOf(row)}`;

  /** What a row's numbers are: the largest magnitude, or where only that was recorded the L2 norm. @param {Row} row */
  const quantity = (row) => (row.measure === "norm" ? "norm" : "|max|");

  /** @param {Row} row @param {number | null} log2 @param {number | null} limit @param {number} [median] */
  function inWords(row, log2, limit, median) {
    if (log2 === null) return "not recorded";
    if (log2 === Infinity) return "not finite";
    if (log2 === -Infinity) return "all zero";
    const off = row.measure === "norm" && median !== undefined && Number.isFinite(median) ? `, ${short(2 ** (log2 - median))} times its median` : "";
    return `${quantity(row)} ≈ ${short(2 ** log2)}${off}` + (limit === null ? "" : `, headroom ${(limit - log2).toFixed(1)} bits`);
  }

  /** How badly a cell is off: larger is worse, NaN is nothing recorded, Infinity is not finite. A norm has no limit: its own median is what it is held against.
   * @param {Panel} panel @param {number} r @param {number} c @param {string} format */
  function badness(panel, r, c, format) {
    const log2 = log2At(panel, r, c), limit = limitOf(panel.rows[r], format);
    if (log2 === null) return NaN;
    if (log2 === Infinity || log2 === -Infinity) return log2;
    if (panel.rows[r].measure === "norm") return -MOST_BITS * (1 - Math.min(1, Math.abs(log2 - panel.medians[r]) / MOST_OFF));
    return limit === null ? UNLIMITED : Math.min(0, Math.max(-MOST_BITS, log2 - limit));
  }

  /** @param {Panel} panel @param {number} r @param {number} c @param {number} score @returns {number[]} */
  function colourOf(panel, r, c, score) {
    if (score === Infinity) return rgb(colourVar("--bad-cell"));
    if (score === -Infinity) return rgb(colourVar("--zero-cell"));
    if (score === UNLIMITED) return rgb(colourVar("--plain-cell"));
    if (panel.rows[r].measure !== "norm") return RAMP[Math.min(RAMP.length - 1, Math.floor((-score / MOST_BITS) * RAMP.length))];
    const off = /** @type {number} */ (log2At(panel, r, c)) - panel.medians[r], ramp = off > 0 ? ABOVE : BELOW;
    return Math.abs(off) < 1 ? rgb(colourVar("--plain-cell")) : ramp[Math.min(ramp.length - 1, Math.floor((Math.abs(off) / MOST_OFF) * ramp.length))];
  }

  /** Rows first to last - 1, one pixel per cell, or the worst of the cells that share a pixel.
   * @param {Panel} panel @param {string} format @param {number} width @param {number} height @param {number} first @param {number} last
   * @returns {HTMLCanvasElement} */
  function picture(panel, format, width, height, first, last) {
    const n = last - first, m = panel.steps.length, w = Math.min(m, width), h = Math.min(n, height);
    const worst = new Float32Array(w * h).fill(NaN), where = new Int32Array(w * h);
    for (let r = 0; r < n; r++)
      for (let c = 0; c < m; c++) {
        const score = badness(panel, first + r, c, format), at = Math.floor((r * h) / n) * w + Math.floor((c * w) / m);
        if (!Number.isNaN(score) && !(worst[at] >= score)) { worst[at] = score; where[at] = (first + r) * m + c; }
      }
    const canvas = document.createElement("canvas");
    canvas.width = w; canvas.height = h;
    const g = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")), image = g.createImageData(w, h);
    worst.forEach((score, i) => { if (!Number.isNaN(score)) image.data.set([...colourOf(panel, Math.floor(where[i] / m), where[i] % m, score), 255], 4 * i); });
    g.putImageData(image, 0, 0);
    return canvas;
  }

  /** Sizes of the parts of a heat map, in CSS pixels.
   * @param {Panel} panel @param {number} width */
  function geometry(panel, width) {
    const n = panel.rows.length, m = panel.steps.length;
    const scrolls = m <= 12 && n * ROW_HEIGHT > VIEW_HEIGHT;
    const rowHeight = scrolls ? ROW_HEIGHT : Math.min(ROW_HEIGHT, (VIEW_HEIGHT - AXIS_HEIGHT - 8) / n);
    const label = rowHeight >= 11 ? Math.min(360, Math.floor(width * 0.46)) : 0;
    const value = m < FEW_STEPS && label ? Math.min(170, Math.floor(width * 0.25)) : 0;
    const room = Math.max(20, width - label - value - (label ? 18 : 2));
    const cell = Math.min(room / m, 48);
    return { n, m, rowHeight, label, value, cell, plotWidth: cell * m, plotHeight: rowHeight * n, scrolls, height: scrolls ? VIEW_HEIGHT : rowHeight * n + AXIS_HEIGHT };
  }

  /** @param {CanvasRenderingContext2D} g @param {Panel} panel @param {ReturnType<typeof geometry>} geo @param {string} format
   * @param {number} first @param {number} last */
  function drawLabels(g, panel, geo, format, first, last) {
    g.font = FONT; g.textBaseline = "middle";
    const room = Math.floor((geo.label - 12) / g.measureText("M").width);
    for (let r = first; r < last; r++) {
      const row = panel.rows[r], y = (r + 0.5) * geo.rowHeight;
      g.textAlign = "right"; g.fillStyle = colourVar("--fg");
      g.fillText(shortened(nameOf(row), room), geo.label - 6, y);
      if (!geo.value) continue;
      const log2 = log2At(panel, r, geo.m - 1), limit = limitOf(row, format);
      g.textAlign = "left"; g.fillStyle = log2 === Infinity ? colourVar("--error") : colourVar("--mute");
      const bits = limit === null || log2 === null || !Number.isFinite(log2) ? "" : `  ${(limit - log2).toFixed(1)} bits`;
      g.fillText(log2 === null || !Number.isFinite(log2) ? inWords(row, log2, null) : short(2 ** log2) + bits, geo.label + geo.plotWidth + 8, y);
    }
  }

  /** Hatches what is not finite: told from other cells without colour. @param {CanvasRenderingContext2D} g @param {Panel} panel @param {ReturnType<typeof geometry>} geo
   * @param {number} first @param {number} last */
  function drawHatches(g, panel, geo, first, last) {
    if (geo.rowHeight < 6) return;
    g.save();
    g.beginPath();
    for (let r = first; r < last; r++)
      for (let c = 0; c < geo.m; c++) if (panel.codes[r * geo.m + c] === NOT_FINITE) g.rect(geo.label + c * geo.cell, r * geo.rowHeight, geo.cell, geo.rowHeight);
    g.clip();
    g.strokeStyle = "rgb(255 255 255 / 55%)"; g.lineWidth = 1;
    g.beginPath();
    const top = first * geo.rowHeight, height = (last - first) * geo.rowHeight;
    for (let x = -height; x < geo.plotWidth; x += 7) { g.moveTo(geo.label + x, top + height); g.lineTo(geo.label + x + height, top); }
    g.stroke();
    g.restore();
  }

  /** @param {CanvasRenderingContext2D} g @param {Panel} panel @param {ReturnType<typeof geometry>} geo */
  function drawAxis(g, panel, geo) {
    const bottom = geo.height - AXIS_HEIGHT;
    g.font = FONT; g.textBaseline = "top"; g.fillStyle = colourVar("--mute");
    const least = geo.m / Math.max(1, Math.floor(geo.plotWidth / 70)), decade = 10 ** Math.floor(Math.log10(Math.max(1, least)));
    const every = [1, 2, 5, 10].map((k) => k * decade).find((k) => k >= least) || 10 * decade;
    for (let c = 0; c < geo.m; c += every) {
      const x = geo.label + (c + 0.5) * geo.cell;
      g.textAlign = c === 0 && geo.label === 0 ? "left" : "center";
      g.fillRect(Math.round(x), bottom, 1, 4);
      g.fillText(String(panel.steps[c]), c === 0 && geo.label === 0 ? 2 : x, bottom + 7);
    }
    g.fillStyle = colourVar("--error");
    for (const c of foundAt(panel)) {
      const x = geo.label + (c + 0.5) * geo.cell;
      g.beginPath(); g.moveTo(x, bottom); g.lineTo(x - 5, bottom + 7); g.lineTo(x + 5, bottom + 7); g.fill();
    }
    g.textAlign = "right"; g.fillStyle = colourVar("--mute");
    if (geo.label) g.fillText("step", geo.label - 6, bottom + 7);
  }

  /** @param {CanvasRenderingContext2D} g @param {Panel} panel @param {ReturnType<typeof geometry>} geo @param {number} selected */
  function drawMarks(g, panel, geo, selected) {
    if (selected >= 0) {
      const h = Math.max(geo.rowHeight, 1);
      g.strokeStyle = colourVar("--select"); g.lineWidth = geo.rowHeight < 4 ? 0.5 : 1.5;
      g.strokeRect(geo.label + 0.5, (selected + 0.5) * geo.rowHeight - h / 2, geo.plotWidth - 1, h);
    }
    for (const [r, c] of panel.marks) {
      const w = Math.max(geo.cell, 10), h = Math.max(geo.rowHeight, 10);
      const x = geo.label + (c + 0.5) * geo.cell - w / 2, y = Math.max(1, (r + 0.5) * geo.rowHeight - h / 2);
      g.lineWidth = 4; g.strokeStyle = "#000"; g.strokeRect(x, y, w, h);
      g.lineWidth = 2; g.strokeStyle = "#fff"; g.strokeRect(x, y, w, h);
    }
  }

  /** @param {{panel: Panel, selected: number, format: string, pick: (row: number) => void, open: (row: number) => void, zoom: (span: [number, number] | number) => void}} props `zoom`: to steps from and to, or by a factor */
  function Heat({ panel, selected, format, pick, open, zoom }) {
    const box = useRef(), canvas = useRef(), [width, theme] = useLayout(box);
    const [tip, setTip] = useState(null), [scroll, setScroll] = useState(0), [drag, setDrag] = useState(null);
    const geo = useMemo(() => geometry(panel, width - 2), [panel, width]);
    useEffect(() => {
      if (width < 50) return;
      const scale = window.devicePixelRatio || 1, element = canvas.current;
      element.width = (width - 2) * scale; element.height = geo.height * scale;
      element.style.width = `${width - 2}px`; element.style.height = `${geo.height}px`;
      const g = element.getContext("2d");
      g.scale(scale, scale); g.imageSmoothingEnabled = false;
      const first = geo.scrolls ? Math.floor(scroll / geo.rowHeight) : 0, last = geo.scrolls ? Math.min(geo.n, first + Math.ceil(VIEW_HEIGHT / geo.rowHeight) + 1) : geo.n;
      drawAxis(g, panel, geo);
      g.beginPath(); g.rect(0, 0, width, geo.height - AXIS_HEIGHT); g.clip();
      g.translate(0, -(geo.scrolls ? scroll : 0));
      const drawn = (last - first) * geo.rowHeight;
      const image = picture(panel, format, Math.max(1, Math.floor(geo.plotWidth * scale)), Math.max(1, Math.floor(drawn * scale)), first, last);
      g.drawImage(image, geo.label, first * geo.rowHeight, geo.plotWidth, drawn);
      drawHatches(g, panel, geo, first, last);
      if (geo.label) drawLabels(g, panel, geo, format, first, last);
      drawMarks(g, panel, geo, selected);
    }, [panel, width, theme, format, selected, scroll]);
    useEffect(() => {
      const view = canvas.current.parentElement; // show the chosen row of a long list
      const y = (selected + 0.5) * geo.rowHeight;
      if (geo.scrolls && (y < view.scrollTop || y > view.scrollTop + view.clientHeight - AXIS_HEIGHT)) view.scrollTop = y - view.clientHeight / 2;
    }, [selected, width]);

    /** The cell under the pointer; of several rows or steps that share a pixel, the worst. @param {MouseEvent} event */
    const cellAt = (event) => {
      const half = (/** @type {number} */ size) => (size < 1 ? Math.ceil(0.5 / size) : 0);
      const r0 = Math.floor((event.offsetY + (geo.scrolls ? scroll : 0)) / geo.rowHeight), c0 = Math.floor((event.offsetX - geo.label) / geo.cell);
      if (r0 < 0 || r0 >= geo.n || event.offsetY > geo.height - AXIS_HEIGHT) return null;
      let best = { r: r0, c: Math.min(geo.m - 1, Math.max(0, c0)) }, worst = -Infinity;
      const dr = half(geo.rowHeight), dc = half(geo.cell), c1 = best.c;
      for (let r = Math.max(0, r0 - dr); r <= Math.min(geo.n - 1, r0 + dr); r++)
        for (let c = Math.max(0, c1 - dc); c <= Math.min(geo.m - 1, c1 + dc); c++) {
          const score = badness(panel, r, c, format);
          if (score > worst) { worst = score; best = { r, c }; }
        }
      return best;
    };
    const columnAt = (/** @type {MouseEvent} */ event) => Math.min(geo.m - 1, Math.max(0, Math.floor((event.offsetX - geo.label) / geo.cell)));
    const dragged = (/** @type {MouseEvent} */ event) => {
      setDrag(null);
      const ends = drag && [drag.from, columnAt(event)].sort((a, b) => a - b);
      if (!ends || Math.abs(event.offsetX - drag.x) < 6 || ends[0] === ends[1]) { const cell = cellAt(event); return cell && pick(cell.r); }
      zoom([panel.steps[ends[0]], panel.steps[ends[1]]]);
    };
    const hover = (/** @type {MouseEvent} */ event) => {
      if (drag) return setDrag({ ...drag, to: columnAt(event) });
      const cell = cellAt(event);
      if (!cell) return setTip(null);
      const bounds = box.current.getBoundingClientRect();
      const x = Math.min(event.clientX - bounds.left + 14, Math.max(0, bounds.width - 330)), y = event.clientY - bounds.top + 18;
      setTip({ ...cell, x, y });
    };
    const key = (/** @type {KeyboardEvent} */ event) => {
      const step = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -geo.n, End: geo.n })[event.key];
      if (step) { event.preventDefault(); pick(Math.min(geo.n - 1, Math.max(0, selected + step))); }
      if (event.key === "Enter") open(selected);
      if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 0.5 : 2);
    };
    const row = tip && panel.rows[tip.r];
    return html`<div class="heat" ref=${box}>
      <div class="view" onScroll=${(/** @type {any} */ e) => { setScroll(e.target.scrollTop); setTip(null); }}><canvas ref=${canvas} tabIndex="0" role="slider" aria-orientation="vertical" aria-valuemin="0" aria-valuemax=${geo.n - 1} aria-valuenow=${selected} aria-valuetext=${nameOf(panel.rows[selected])} aria-label=${`${panel.title}: ${geo.n} rows, ${geo.m} steps`}
        onDblClick=${(/** @type {MouseEvent} */ e) => { const cell = cellAt(e); if (cell) open(cell.r); }}
        onMouseMove=${hover} onMouseLeave=${() => { setTip(null); setDrag(null); }} onKeyDown=${key}
        onMouseDown=${(/** @type {MouseEvent} */ e) => { if (e.button === 0) setDrag({ from: columnAt(e), to: columnAt(e), x: e.offsetX }); }} onMouseUp=${dragged}></canvas>
        ${drag && drag.from !== drag.to && html`<div class="dragged" style=${{ left: `${geo.label + Math.min(drag.from, drag.to) * geo.cell}px`, width: `${(Math.abs(drag.to - drag.from) + 1) * geo.cell}px`, height: `${geo.height - AXIS_HEIGHT}px` }}></div>`}
        ${geo.scrolls && html`<div style=${{ height: `${geo.plotHeight + AXIS_HEIGHT - VIEW_HEIGHT}px` }}></div>`}</div>
      ${tip && html`<div class="tip" style=${{ left: `${tip.x}px`, top: `${tip.y}px` }}>
        <b class="mono">${shortened(row.site || "(model)", 120)}</b> <span class="mono">${portOf(row)}</span>
        <div class="mute">${[row.phase, row.op, row.dtype].filter(Boolean).join(" · ")}</div>
        <div>step ${panel.steps[tip.c]}: ${inWords(row, log2At(panel, tip.r, tip.c), limitOf(row, format), panel.medians[tip.r])}</div></div>`}
    </div>`;
  }

  /** Columns of the steps at which something was found. @param {Panel} panel @returns {number[]} */
  const foundAt = (panel) => [...new Set(DATA.finding_steps.filter((/** @type {number} */ step) => step <= panel.until).map((/** @type {number} */ step) => panel.steps.findLastIndex((at) => at <= step)))].filter((c) => c >= 0);

  /** What to chart for the picked row: over steps, or with few steps over execution order.
   * @param {Panel} panel @param {number} selected */
  function seriesOf(panel, selected) {
    const overSteps = panel.steps.length >= FEW_STEPS, last = panel.steps.length - 1;
    const x = overSteps ? panel.steps : panel.rows.map((_, i) => i);
    const log2 = x.map((_, i) => (overSteps ? log2At(panel, selected, i) : log2At(panel, i, last)));
    return { overSteps, x, log2 };
  }

  /** @param {{panel: Panel, selected: number, format: string}} props */
  function Line({ panel, selected, format }) {
    const box = useRef(), [width, theme] = useLayout(box);
    const row = panel.rows[selected], limit = limitOf(row, format), { overSteps, x, log2 } = useMemo(() => seriesOf(panel, selected), [panel, selected]);
    const finite = log2.filter((v) => v !== null && Number.isFinite(v)), highest = Math.max(...finite, -Infinity);
    const isNear = limit !== null && (finite.length === 0 || limit - highest < 24); // else the limit would flatten the curve
    const dtype = format === "own" ? row.dtype : format;
    useEffect(() => {
      if (width < 50) return undefined;
      const curve = log2.map((v) => (v === null || !Number.isFinite(v) ? null : 2 ** v));
      const top = isNear ? 2 ** /** @type {number} */ (limit) : finite.length ? 2 ** highest : 1;
      const bad = log2.map((v) => (v === Infinity ? top : null));
      const value = (/** @type {unknown} */ _, /** @type {number | null} */ v) => (v === null || v === undefined ? "–" : short(v));
      const series = [{ label: overSteps ? "step" : "row" }, { label: overSteps ? quantity(row) : "|max|", stroke: colourVar("--curve"), width: 1.5, value, points: { show: x.length < 60 } },
        { label: "not finite", stroke: colourVar("--bad-cell"), fill: colourVar("--bad-cell"), paths: () => null, points: { show: true, size: 6, fill: colourVar("--bad-cell") }, value: (/** @type {unknown} */ _, /** @type {number | null} */ v) => (v ? "yes" : "–") }];
      const columns = [x, curve, bad];
      if (isNear) {
        series.push(/** @type {any} */ ({ label: `largest ${dtype}`, stroke: colourVar("--error"), dash: [6, 4], width: 1.5, value: () => short(top, 5), points: { show: false } }));
        columns.push(x.map(() => top));
      }
      const marked = overSteps ? foundAt(panel) : [selected], told = marked.length ? marked[0] : x.length - 1;
      const cross = (/** @type {any} */ u) => marked.forEach((at) => strike(u, x[at], colourVar("--select")));
      const tell = (/** @type {any} */ u) => { if (u.cursor.idx === null || u.cursor.idx === undefined) u.setLegend({ idx: told }, false); }; // read before anybody points
      const plot = new Plot({ ...frame({ width, height: 300, label: overSteps ? "step" : "row of the map, in execution order", isLog: true, hooks: { draw: [cross], ready: [tell], setCursor: [tell] } }), series }, columns, box.current);
      return () => plot.destroy();
    }, [panel, selected, width, theme, format]);
    return html`<div class="line"><div class="chart-title"><span class="mono">${shortened(nameOf(row), 200)}</span> <span class="mute">${[row.phase, row.dtype].filter(Boolean).join(", ")}${overSteps ? `: ${row.measure === "norm" ? "L2 norm" : "largest magnitude"} over steps` : `, |max| of every row at step ${panel.steps[panel.steps.length - 1]}`}</span></div>
      <div ref=${box}></div>
      ${limit !== null && !isNear && html`<p class="mute small">the largest ${dtype}, ${short(2 ** limit)}, is ${(limit - highest).toFixed(0)} bits above this chart</p>`}</div>`;
  }

  const PHASES = { forward: "forward: outputs", backward: "backward: gradients of outputs", grad: "gradients of parameters", scaler: "gradients of parameters, as the loss scaler saw them", param: "parameters", optimizer: "optimizer state" };
  const SCALES = [0, 8, 12, 16, 20, 24]; // log2 of the loss scales offered

  /** What the colours assume, in a sentence. @param {Panel} panel @param {string} format @param {number | null} log2Scale */
  function assumed(panel, format, log2Scale) {
    const to = format === "own" ? "to the largest value of each site's own dtype" : `to the largest ${format}, ${short(2 ** DATA.log2_limits[format], 5)}, as if each site were in it`;
    const phases = scaledPhases(panel);
    if (!phases.length) return to;
    if (log2Scale !== null) return `${to}; gradients as they would be at loss scale ${scaleText(2 ** log2Scale)}`;
    const had = phases.map((phase) => {
      const low = panel.carried[phase].reduce((a, b) => Math.min(a, b)), high = panel.carried[phase].reduce((a, b) => Math.max(a, b));
      return { phase, isScaled: low !== 0 || high !== 0, text: low === high ? scaleText(2 ** low) : `${scaleText(2 ** low)} to ${scaleText(2 ** high)}` };
    });
    if (!had.some(({ isScaled }) => isScaled)) return `${to}; gradients as recorded, without a loss scale`;
    return `${to}; gradients as recorded, with the loss scale of their step in them: ${had.map(({ phase, isScaled, text }) => `${phase} ${isScaled ? text : "none, it was taken out"}`).join(", ")}`;
  }

  /** Phases of gradients whose magnitude is known. @param {Panel} panel */
  const scaledPhases = (panel) => [...new Set(panel.rows.filter((row) => row.phase in panel.carried && isScaled(row)).map((row) => row.phase))];

  /** @param {number[][]} colours */
  const ramp = (colours) => `linear-gradient(90deg, ${colours.map((c) => `rgb(${c.join(" ")})`).join(", ")})`;

  /** What to show of the map below. @param {{panel: Panel, view: Panel, show: Show, set: (change: object) => void, zoom: (factor: number) => void}} props `panel`: with all its rows */
  function Controls({ panel, view, show, set, zoom }) {
    const phases = [...new Set(panel.rows.map((row) => row.phase))], deepest = Math.min(6, Math.max(...panel.rows.map((row) => row.site.split(".").length)));
    const depths = Array.from({ length: deepest }, (_, i) => i + 1);
    const depth = show.depth ?? fittingDepth(panel, panel.from), isFound = !show.find || view.rows.length < panel.rows.length || depth > 0;
    const m = panel.steps.length, span = show.span || [panel.steps[0], panel.steps[m - 1]];
    const ends = (/** @type {number} */ at, /** @type {any} */ e) => { const step = Number(e.target.value); set({ span: at ? [Math.min(span[0], step), step] : [step, Math.max(span[1], step)] }); };
    return html`<div class="controls">
      <label>find <input type="search" value=${show.find} placeholder="module, operator" onInput=${(/** @type {any} */ e) => set({ find: e.target.value })} /></label>
      ${!isFound && html`<span role="status">no row fits: all are shown</span>`}
      ${panel.rows.length > 1 && html`<label>one line for <select value=${String(depth)} onChange=${(/** @type {any} */ e) => set({ depth: Number(e.target.value) })} aria-label="fold">
        <option value="0">each row</option>
        ${depths.map((n) => html`<option value=${String(n)}>each module, ${n === 1 ? "outermost" : `${n} levels deep`}</option>`)}
      </select></label>`}
      ${phases.length > 1 && html`<span>show <select value=${phases.includes(show.phase) ? show.phase : ""} onChange=${(/** @type {any} */ e) => set({ phase: e.target.value })} aria-label="phase">
        <option value="">all phases</option>
        ${phases.map((name) => html`<option value=${name}>${/** @type {Record<string, string>} */ (PHASES)[name] || name}</option>`)}
      </select></span>`}
      ${panel.rows.some((row) => row.measure !== "norm") && html`<span>headroom to the largest
      <select value=${show.format} onChange=${(/** @type {any} */ e) => set({ format: e.target.value })} aria-label="format">
        <option value="own">value of the site's own dtype</option>
        ${Object.keys(DATA.log2_limits).filter((name) => /^b?float/.test(name)).map((name) => html`<option value=${name}>${name}, as a what-if</option>`)}
      </select></span>`}
      ${scaledPhases(panel).length > 0 && html`<span>gradients at loss scale <select value=${show.log2Scale === null ? "" : String(show.log2Scale)} onChange=${(/** @type {any} */ e) => set({ log2Scale: e.target.value === "" ? null : Number(e.target.value) })} aria-label="loss scale">
        <option value="">as recorded</option>
        ${SCALES.map((bits) => html`<option value=${String(bits)}>${bits ? `2^${bits}` : "1, taken out"}, as a what-if</option>`)}
      </select></span>`}
      ${m > FEW_STEPS && html`<span>steps <input type="number" class="step" aria-label="first step" min=${panel.steps[0]} max=${panel.steps[m - 1]} value=${span[0]} onChange=${(/** @type {any} */ e) => ends(0, e)} /> to${" "}
        <input type="number" class="step" aria-label="last step" min=${panel.steps[0]} max=${panel.steps[m - 1]} value=${span[1]} onChange=${(/** @type {any} */ e) => ends(1, e)} />
        <button type="button" title="fewer steps, around the finding; or drag over the map" aria-label="zoom in" onClick=${() => zoom(0.5)}>+</button><button type="button" aria-label="zoom out" onClick=${() => zoom(2)}>−</button>
        ${show.span && html`<button type="button" onClick=${() => set({ span: null })}>all steps</button>`}</span>`}
    </div>`;
  }

  /** What the colours mean. @param {{view: Panel, show: Show}} props */
  function Legend({ view, show }) {
    const hasNorms = view.rows.some((row) => row.measure === "norm"), hasValues = view.rows.some((row) => row.measure !== "norm");
    return html`<div class="legend">
      ${hasValues && html`<span>0 bits<span class="ramp" style=${{ background: ramp(RAMP) }}></span>${MOST_BITS} or more, headroom</span>`}
      ${hasNorms && html`<span>norm against its own median over the steps: 1/${2 ** MOST_OFF}<span class="ramp" style=${{ background: ramp([...BELOW].reverse().concat([rgb(colourVar("--plain-cell"))], ABOVE)) }}></span>${2 ** MOST_OFF} times</span>`}
      <span><span class="swatch hatched" style=${{ backgroundColor: "var(--bad-cell)" }}></span>not finite</span>
      <span><span class="swatch" style=${{ background: "var(--zero-cell)" }}></span>all zero</span>
      ${hasValues && html`<span><span class="swatch" style=${{ background: "var(--plain-cell)" }}></span>finite, headroom not known</span>`}
      <span><span class="swatch"></span>not recorded</span>
      <span>box, and ▲ at the steps: a finding; red without a box followed from it, or was masked away later</span>
      ${hasValues && html`<span class="assumed">Headroom is counted ${assumed(view, show.format, show.log2Scale)}.</span>`}
      ${view.rows.some((row) => / rows$/.test(row.port)) && html`<span class="assumed">A line is the largest of its module; Enter or a double click opens it.</span>`}</div>`;
  }

  /** Let the rows of the static table choose what is charted. @param {(pick: Pick) => void} pick */
  function wireTable(pick) {
    document.querySelectorAll("table.upstream tr[data-line]").forEach((row) => {
      const target = DATA.lines[Number(row.getAttribute("data-line"))];
      if (!target) return;
      const choose = () => pick({ panel: target[0], row: target[1] });
      row.setAttribute("tabindex", "0");
      row.addEventListener("click", choose);
      row.addEventListener("keydown", (event) => { if (/** @type {KeyboardEvent} */ (event).key === "Enter") choose(); });
    });
  }

  function App() {
    const [panels, setPanels] = useState(null), [error, setError] = useState("");
    const [picked, pick] = useState(DATA.first), [show, setShow] = useState({ format: "own", phase: "", log2Scale: null, find: "", depth: null, span: null });
    const set = (/** @type {object} */ change) => setShow((/** @type {object} */ before) => ({ ...before, ...change }));
    useEffect(() => {
      Promise.all(DATA.panels.map(unpack)).then(setPanels, (reason) => setError(String(reason)));
      wireTable((target) => { pick(target); set({ phase: "", find: "", depth: 0, span: null }); });
    }, []);
    useEffect(() => { if (panels) document.documentElement.classList.add("drawn"); }, [panels]);
    const views = useMemo(() => (panels || []).map((/** @type {Panel} */ panel) => viewOf(panel, show)), [panels, show]);
    if (error) return html`<p class="remark">the charts cannot be drawn: ${error} (a browser of 2023 or later is needed)</p>`;
    if (!panels) return null;
    return html`${panels.map((/** @type {Panel} */ panel, /** @type {number} */ index) => {
      const view = views[index], wanted = view.place.get(picked.panel === index ? picked.row : panel.first);
      const selected = wanted ?? (view.marks.length ? view.marks[0][0] : 0);
      const open = (/** @type {number} */ row) => { pick({ panel: index, row: view.from[row] }); if (/ rows$/.test(view.rows[row].port)) set({ depth: null, find: view.rows[row].site.replace(/\.?\*$/, "") }); };
      const zoom = (/** @type {[number, number] | number} */ to) => set({ span: Array.isArray(to) ? to : zoomed(panel, view, to) });
      return html`<section class="panel" key=${index}><div class="panel-head"><h2>${panel.title}</h2><span class="mute small">${panel.about}</span></div>
        <${Controls} panel=${panel} view=${view} show=${show} set=${set} zoom=${zoom} />
        <div class="split"><div><${Heat} panel=${view} selected=${selected} format=${show.format} open=${open} zoom=${zoom} pick=${(/** @type {number} */ row) => pick({ panel: index, row: view.from[row] })} />
        <${Legend} view=${view} show=${show} /></div><${Line} panel=${view} selected=${selected} format=${show.format} /></div></section>`;
    })}`;
  }

  /** The steps to show next, around the first finding of those that are shown, or their middle; null for all.
   * @param {Panel} panel @param {Panel} view @param {number} factor @returns {[number, number] | null} */
  function zoomed(panel, view, factor) {
    const [first, last] = [panel.steps[0], panel.steps[panel.steps.length - 1]], [a, b] = [view.steps[0], view.steps[view.steps.length - 1]];
    const at = view.marks.length ? view.marks[0][1] : foundAt(view)[0], middle = at === undefined ? (a + b) / 2 : view.steps[at], half = Math.max(1, ((b - a) * factor) / 2);
    const from = Math.max(first, Math.round(middle - half)), to = Math.min(last, Math.round(middle + half));
    return from === first && to === last ? null : [from, to];
  }

  page.scaleText = scaleText; // for diary.js
  const root = /** @type {HTMLElement} */ (document.getElementById("app"));
  render(html`<${App} />`, root);
})();
