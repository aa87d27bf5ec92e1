// Values under the pointer on the curves, which are pictures: read back from where their lines run. Plain ES, no build step.
// @ts-check
"use strict";
(() => {
  /** @typedef {{first: number, last: number, left: number, right: number, width: number, top: number, bottom: number, low: number, high: number, isLog: boolean}} Axis hypocenter.report.page.curves */
  /** @param {number} value */
  const short = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(2).replace("e+", "e").replace(/\.?0+e/, "e") : String(Number(value.toPrecision(4))));

  /** The value at a height. @param {Axis} axis @param {number} y */
  function valueAt(axis, y) {
    const share = (axis.bottom - y) / (axis.bottom - axis.top), { low, high } = axis;
    return axis.isLog ? low * (high / low) ** share : low + share * (high - low);
  }

  /** @param {Element} path @param {number} x @returns {[number, number] | null} the point of a line that is next to x */
  function nearest(path, x) {
    const points = [...(path.getAttribute("d") || "").matchAll(/[ML]([\d.]+) ([\d.]+)/g)].map((m) => /** @type {[number, number]} */ ([Number(m[1]), Number(m[2])]));
    return points.reduce((/** @type {[number, number] | null} */ best, at) => (best === null || Math.abs(at[0] - x) < Math.abs(best[0] - x) ? at : best), null);
  }

  const tipOf = (/** @type {Element} */ figure) => /** @type {HTMLElement} */ (figure.querySelector(".tip"));
  document.addEventListener("pointermove", (event) => {
    const svg = /** @type {Element} */ (event.target).closest?.("figure.over-steps svg"), figure = svg?.closest("figure");
    document.querySelectorAll("figure.over-steps .tip").forEach((tip) => { if (!figure?.contains(tip)) /** @type {HTMLElement} */ (tip).hidden = true; });
    if (!svg || !figure) return;
    const box = svg.getBoundingClientRect(), axis = /** @type {Axis} */ (JSON.parse(figure.getAttribute("data-axis") || "{}")), tip = tipOf(figure);
    const x = ((event.clientX - box.left) / box.width) * axis.width, names = [...figure.querySelectorAll(".key.line")].map((key) => key.parentElement?.textContent || "");
    const stepAt = (/** @type {number} */ at) => Math.round(axis.first + ((at - axis.left) / (axis.right - axis.left)) * (axis.last - axis.first));
    const lines = [...svg.querySelectorAll("path.curve")].map((path, i) => {
      const found = nearest(path, x), name = names[i] ? `, ${names[i]}` : "";
      if (!found || Math.abs(stepAt(found[0]) - stepAt(x)) > Math.max(1, (axis.last - axis.first) / 40)) return `step ${stepAt(x)}${name}: –`;
      return `step ${stepAt(found[0])}${name}: ${short(valueAt(axis, found[1]))}`;
    });
    tip.hidden = x < axis.left - 4 || x > axis.right + 4;
    tip.style.left = `${Math.max(0, Math.min((x / axis.width) * box.width + 12, box.width - 150))}px`;
    tip.textContent = lines.join("\n");
  });
  document.addEventListener("pointerleave", () => document.querySelectorAll("figure.over-steps .tip").forEach((tip) => { /** @type {HTMLElement} */ (tip).hidden = true; }));
})();
