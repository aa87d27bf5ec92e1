// What the pages share: unpacking of embedded data, numbers as text, the frame of a chart. Plain ES, no build step.
// @ts-check
"use strict";
(() => {
  // @ts-ignore the vendored scripts before this one define it
  const { useEffect, useState } = window.htmPreact;

  /** @param {string} b64 @returns {Promise<Uint8Array>} */
  async function gunzip(b64) {
    const bytes = Uint8Array.from(atob(b64), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  /** @param {number} value @param {number} [digits] @returns {string} */
  function short(value, digits = 4) {
    if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "+inf" : "-inf";
    const size = Math.abs(value);
    if (size === 0 || (size >= 1e-3 && size < 1e5)) return String(Number(value.toPrecision(digits)));
    return value.toExponential(2).replace("e+", "e").replace(/\.?0+e/, "e");
  }

  /** @param {string} name */
  const colourVar = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /** Re-render on a change of width or of light and dark.
   * @param {{current: HTMLElement | null}} ref @returns {[number, number]} width in CSS pixels, and a number that changes with the theme */
  function useLayout(ref) {
    const [width, setWidth] = useState(0), [theme, setTheme] = useState(0);
    useEffect(() => {
      const element = /** @type {HTMLElement} */ (ref.current);
      const observer = new ResizeObserver(() => setWidth(Math.floor(element.clientWidth)));
      observer.observe(element);
      setWidth(Math.floor(element.clientWidth));
      const media = matchMedia("(prefers-color-scheme: dark)"), changed = () => setTheme((/** @type {number} */ n) => n + 1);
      media.addEventListener("change", changed);
      return () => { observer.disconnect(); media.removeEventListener("change", changed); };
    }, []);
    return [width, theme];
  }

  /** @param {{width: number, height: number, label: string, isLog: boolean, hooks?: Record<string, any[]>}} want */
  function frame({ width, height, label, isLog, hooks }) {
    const axis = { stroke: colourVar("--fg"), grid: { stroke: colourVar("--line"), width: 1 }, ticks: { stroke: colourVar("--line"), width: 1 } };
    const values = (/** @type {unknown} */ _, /** @type {(number | null)[]} */ ticks) => ticks.map((v) => (v === null ? "" : short(v)));
    const decades = (/** @type {unknown} */ _, /** @type {number} */ low, /** @type {number} */ high) => {
      const bottom = Math.floor(Math.log10(low || 1e-3)), top = Math.ceil(Math.log10(high || 1));
      return [10 ** bottom, 10 ** Math.max(top, bottom + 1)];
    };
    const scoped = (/** @type {any} */ u) => u.root.querySelectorAll("th").forEach((/** @type {Element} */ th) => th.setAttribute("scope", "row"));
    return {
      width, height, hooks: { ...hooks, ready: [scoped, ...(hooks?.ready ?? [])] }, padding: [10, 14, 0, 0],
      scales: { x: { time: false }, y: isLog ? { distr: 3, range: decades } : {} },
      axes: [{ ...axis, label, labelSize: 18, size: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000] }, { ...axis, size: 62, values }],
    };
  }

  /** A vertical line at x. @param {any} u @param {number} x @param {string} colour */
  function strike(u, x, colour) {
    const at = Math.round(u.valToPos(x, "x", true));
    u.ctx.save();
    u.ctx.strokeStyle = colour; u.ctx.lineWidth = window.devicePixelRatio || 1;
    u.ctx.beginPath(); u.ctx.moveTo(at, u.bbox.top); u.ctx.lineTo(at, u.bbox.top + u.bbox.height); u.ctx.stroke();
    u.ctx.restore();
  }

  // @ts-ignore for the scripts after this one
  window.hypocenterPage = { colourVar, frame, gunzip, short, strike, useLayout };
})();
