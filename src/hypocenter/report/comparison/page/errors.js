// The chart: relative error of each row against its noise floor, over execution order.
// @ts-check
"use strict";
(() => {
  // @ts-ignore the scripts before this one define these
  const { html, useEffect, useRef, useState } = window.htmPreact, Plot = window.uPlot, diff = window.hypocenterDiff, { colourVar, useLayout } = window.hypocenterPage;
  const { CLASSES, NAMES, GLYPHS, ZERO_GAP, floorOf, power, times } = diff;
  const HEIGHT = 340, TIP_WIDTH = 320, POINT = 5; // CSS pixels
  const BELOW = 5; // powers of two drawn below the least noise floor
  const LEAST = -60, MOST = 60; // exponents drawn: beyond them a value stands at the edge

  /** @param {number | null} value @returns {number | null} exponent; null for what cannot be drawn on a logarithmic axis */
  const exponent = (value) => (value === null || Number.isNaN(value) || value <= 0 ? null : Math.min(MOST, Math.max(LEAST, Math.log2(value))));

  /** Runs of rows of one phase. @param {any} data @param {any} view @returns {{phase: string, from: number, to: number}[]} */
  function phasesOf(data, view) {
    /** @type {{phase: string, from: number, to: number}[]} */
    const found = [];
    view.rows.forEach((/** @type {any} */ row, /** @type {number} */ at) => {
      const phase = data.pairs[row.pair].phase, last = found[found.length - 1];
      if (last && last.phase === phase) last.to = at; else found.push({ phase, from: at, to: at });
    });
    return found;
  }

  /** @param {any} data @param {any} view */
  function columnsOf(data, view) {
    const errors = view.rows.map((/** @type {any} */ row) => exponent(row.error)), floors = view.rows.map((/** @type {any} */ row) => (row.source === "none" ? null : exponent(row.floor)));
    const known = [...errors, ...floors].filter((v) => v !== null), bottom = floors.filter((/** @type {number | null} */ v) => v !== null && v > LEAST); // far below noise nothing is of interest
    const low = bottom.length ? Math.floor(bottom.reduce((/** @type {number} */ a, /** @type {number} */ b) => Math.min(a, b))) - BELOW : known.length ? Math.floor(known.reduce((a, b) => Math.min(a, b))) : -24, high = known.length ? Math.ceil(known.reduce((a, b) => Math.max(a, b))) : 0;
    const zero = low - ZERO_GAP, top = Math.max(high + 1, zero + 4);
    const drawn = view.rows.map((/** @type {any} */ row, /** @type {number} */ at) => (row.error === 0 ? zero : errors[at] === null ? null : Math.max(low, errors[at])));
    const points = CLASSES.slice(0, 4).map((/** @type {string} */ _, /** @type {number} */ code) => view.rows.map((/** @type {any} */ row, /** @type {number} */ at) => (row.code === code ? drawn[at] : null)));
    const limit = floors.map((/** @type {number | null} */ v, /** @type {number} */ at) => (v === null ? null : v + Math.log2(data.limits[view.rows[at].source])));
    const curve = drawn.map((/** @type {number | null} */ v) => (v === zero ? null : v)); // no line down to zero and up again
    return { zero, top, columns: [view.rows.map((/** @type {any} */ _, /** @type {number} */ at) => at), floors, limit, curve], points };
  }

  /** Phases shaded by turns, each named at the top. @param {any} u @param {{phase: string, from: number, to: number}[]} phases */
  function shade(u, phases) {
    const g = u.ctx, scale = window.devicePixelRatio || 1;
    g.save();
    g.font = `${11 * scale}px system-ui, "DejaVu Sans", sans-serif`; g.textBaseline = "top"; g.textAlign = "center";
    let free = -Infinity;
    phases.forEach(({ phase, from, to }, n) => {
      const left = u.valToPos(from - 0.5, "x", true), right = u.valToPos(to + 0.5, "x", true);
      g.fillStyle = colourVar(n % 2 ? "--shade" : "--bg");
      g.fillRect(left, u.bbox.top, right - left, u.bbox.height);
      const middle = Math.min(Math.max((left + right) / 2, u.bbox.left), u.bbox.left + u.bbox.width), half = g.measureText(phase).width / 2;
      if (middle - half > free && right - left > 2 * half) { // a name that fits
        g.fillStyle = colourVar("--mute");
        g.fillText(phase, middle, u.bbox.top + 4 * scale);
        free = middle + half + 6 * scale;
      }
    });
    g.restore();
  }

  /** A vertical line with words. @param {any} u @param {number} at @param {string} colour @param {string} words @param {number[]} dash */
  function flag(u, at, colour, words, dash) {
    const g = u.ctx, scale = window.devicePixelRatio || 1, x = Math.round(u.valToPos(at, "x", true));
    if (x < u.bbox.left - 1 || x > u.bbox.left + u.bbox.width + 1) return;
    g.save();
    g.strokeStyle = colour; g.lineWidth = 1.5 * scale; g.setLineDash(dash.map((d) => d * scale));
    g.beginPath(); g.moveTo(x, u.bbox.top); g.lineTo(x, u.bbox.top + u.bbox.height); g.stroke();
    if (words) {
      g.font = `600 ${12 * scale}px system-ui, "DejaVu Sans", sans-serif`; g.textBaseline = "top"; g.fillStyle = colour;
      const wide = g.measureText(words).width, isLeft = x + wide + 12 * scale > u.bbox.left + u.bbox.width;
      g.textAlign = isLeft ? "right" : "left";
      const from = isLeft ? x - wide - 8 * scale : x + 3 * scale;
      g.fillStyle = colourVar("--bg"); g.fillRect(from, u.bbox.top + 20 * scale, wide + 6 * scale, 17 * scale);
      g.fillStyle = colour; g.fillText(words, x + (isLeft ? -6 : 6) * scale, u.bbox.top + 22 * scale);
    }
    g.restore();
  }

  /** @param {{data: any, view: any, row: number, pick: (row: number) => void}} props */
  function Errors({ data, view, row, pick }) {
    const box = useRef(), chart = useRef(), [width, theme] = useLayout(box), [tip, setTip] = useState(null), now = useRef(row);
    useEffect(() => {
      if (width < 50 || !view.rows.length) return undefined;
      const { zero, top, columns, points } = columnsOf(data, view), phases = phasesOf(data, view), scale = window.devicePixelRatio || 1;
      const axis = { stroke: colourVar("--fg"), grid: { stroke: colourVar("--line"), width: 1 }, ticks: { stroke: colourVar("--line"), width: 1 } };
      const words = (/** @type {unknown} */ _, /** @type {number[]} */ ticks) => ticks.map((v) => (v === zero ? "0" : v < zero + ZERO_GAP || !Number.isInteger(v) ? "" : `2^${v}`));
      const splits = () => { // zero, then round exponents
        const every = [1, 2, 4, 8, 16].find((k) => (top - zero) / k <= 9) || 32, found = [zero];
        for (let v = Math.ceil((zero + ZERO_GAP) / every) * every; v <= top; v += every) found.push(v);
        return found;
      };
      const draw = (/** @type {any} */ u) => {
        const g = u.ctx, size = (view.rows.length > 3000 ? POINT - 2 : POINT) * scale;
        points.forEach((/** @type {(number | null)[]} */ column, /** @type {number} */ code) => {
          g.fillStyle = colourVar(`--${CLASSES[code]}`);
          column.forEach((v, at) => {
            if (v === null) return;
            const x = u.valToPos(at, "x", true), y = u.valToPos(v, "y", true);
            if (x < u.bbox.left - 2 || x > u.bbox.left + u.bbox.width + 2) return;
            g.beginPath();
            if (code === 3) g.rect(x - size / 2, y - size / 2, size, size); // squares differ, circles do not: not by colour alone
            else if (code === 2) { g.moveTo(x, y - size * 0.7); g.lineTo(x + size * 0.7, y + size * 0.5); g.lineTo(x - size * 0.7, y + size * 0.5); }
            else g.arc(x, y, size / 2, 0, 7);
            g.fill();
          });
        });
        if (now.current >= 0 && now.current !== view.first) flag(u, now.current, colourVar("--select"), "", [3, 3]);
        if (view.first >= 0) flag(u, view.first, colourVar("--differs"), view.rows[view.first].step === view.firstStep ? "first divergence" : `first divergence, at step ${view.firstStep}`, []);
      };
      const setCursor = (/** @type {any} */ u) => {
        const at = u.cursor.idx;
        if (at === null || at === undefined || u.cursor.left < 0) return setTip(null);
        const left = u.over.offsetLeft + u.cursor.left;
        setTip({ at, x: left + 16 + TIP_WIDTH > width ? Math.max(0, left - 16 - TIP_WIDTH) : left + 16, y: u.over.offsetTop + 40 });
      };
      const hidden = { points: { show: false } };
      const options = {
        width, height: HEIGHT, padding: [6, 22, 0, 0], legend: { show: false }, cursor: { drag: { x: true, y: false }, points: { show: false } },
        scales: { x: { time: false, range: (/** @type {unknown} */ _, /** @type {number} */ low, /** @type {number} */ high) => [Math.max(-0.5, low - 0.5), Math.min(view.rows.length - 0.5, high + 0.5)] }, y: { range: () => [zero - 0.7, top + 0.14 * (top - zero)] } },
        axes: [{ ...axis, label: width < 600 ? "row, in execution order" : "row, in execution order (drag to zoom, double-click for all)", labelSize: 20, size: 32, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...axis, size: 58, values: words, splits }],
        hooks: { drawClear: [(/** @type {any} */ u) => shade(u, phases)], draw: [draw], setCursor: [setCursor] },
        series: [{}, { stroke: colourVar("--mute"), width: 1.2, fill: colourVar("--noise"), fillTo: zero - 1, paths: Plot.paths.stepped({ align: 0 }), ...hidden }, { stroke: colourVar("--mute"), width: 1, dash: [4, 3], paths: Plot.paths.stepped({ align: 0 }), ...hidden }, { stroke: colourVar("--error-line"), width: 0.8, ...hidden }],
      };
      const plot = new Plot(options, columns, box.current);
      chart.current = plot;
      /** @type {[number, number] | null} */
      let pressed = null;
      plot.over.addEventListener("mousedown", (/** @type {MouseEvent} */ e) => { pressed = [e.clientX, e.clientY]; });
      plot.over.addEventListener("click", (/** @type {MouseEvent} */ e) => { // a drag zooms
        if (pressed && Math.abs(e.clientX - pressed[0]) < 4 && plot.cursor.idx !== null && plot.cursor.idx !== undefined) pick(plot.cursor.idx);
      });
      return () => { plot.destroy(); chart.current = null; };
    }, [view, width, theme]);
    useEffect(() => { now.current = row; if (chart.current) chart.current.redraw(false); }, [row]);
    const key = (/** @type {KeyboardEvent} */ event) => {
      const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      if (!step) return;
      event.preventDefault();
      pick(Math.min(view.rows.length - 1, Math.max(0, row + step)));
    };
    const one = tip && view.rows[tip.at], pair = one && data.pairs[one.pair];
    return html`<div class="errors" ref=${box} tabIndex="0" role="group" aria-label="relative error against noise floor over execution order; arrow keys choose a row" onKeyDown=${key} onMouseLeave=${() => setTip(null)}>
      ${one && html`<div class="tip" style=${{ left: `${tip.x}px`, top: `${tip.y}px`, width: `${Math.min(TIP_WIDTH, width)}px` }}>
        <b class="mono">${pair.left}</b><div class="mute">${pair.phase} · step ${one.step}${one.microbatch ? ` · micro-batch ${one.microbatch}` : ""}</div>
        <div>${GLYPHS[one.code]} ${NAMES[one.code]}: error ${power(one.error)}, floor ${floorOf(one)}${one.times ? `, ${times(one.times)} times` : ""}</div></div>`}
    </div>`;
  }

  /** From where an error counts, for the floors that are there. @param {any} data @param {any} view */
  function counting(data, view) {
    const there = new Set(view.rows.map((/** @type {any} */ row) => row.source)), said = [];
    if (there.has("repeats") || there.has("calibration")) said.push(`${data.limits.repeats} times a measured floor`);
    if (there.has("assumed")) said.push(`${data.limits.assumed} times an assumed one`);
    return said.join(", ");
  }

  /** @param {{data: any, view: any}} props */
  const ErrorsLegend = ({ data, view }) => html`<div class="legend errors-legend">
    ${[3, 2, 1, 0].map((code) => html`<span><span class=${`dot ${CLASSES[code]}`}></span>${GLYPHS[code]} ${NAMES[code]}</span>`)}
    <span><span class="swatch noise-swatch"></span>noise floor</span><span><span class="dash"></span>from here an error counts: ${counting(data, view)}</span></div>`;

  Object.assign(diff, { Errors, ErrorsLegend });
})();
