// The loss-scale chart: scale on a log2 axis over steps, skipped steps marked, the culprits of a step on hover.
// @ts-check
"use strict";
(() => {
  // @ts-ignore the scripts before this one define these
  const { html, render, useEffect, useRef, useState } = window.htmPreact, Plot = window.uPlot, { colourVar, frame, scaleText, useLayout } = window.hypocenterPage;

  /** @typedef {{named: [string, string, string][], n: number}} Culprits name, share not finite, largest finite magnitude */
  /** @type {{steps: number[], scale: (number | null)[], skipped: number[], culprits: Record<string, Culprits>} | null} */
  const DIARY = JSON.parse(/** @type {HTMLElement} */ (document.getElementById("data")).textContent || "{}").diary;
  const TIP_WIDTH = 380; // CSS pixels

  /** @param {number} exponent */
  const power = (exponent) => (Number.isInteger(exponent) ? `2^${exponent}` : "");

  /** @param {{at: number}} props */
  function Tip({ at }) {
    const diary = /** @type {NonNullable<typeof DIARY>} */ (DIARY), step = diary.steps[at], scale = diary.scale[at], found = diary.culprits[step];
    return html`<b>step ${step}${diary.skipped.includes(step) ? ": skipped" : ""}</b> at loss scale ${scale === null ? "0 or not finite" : scaleText(scale)}
      ${!found && diary.skipped.includes(step) && html`<div class="mute">which gradients: hypocenter show RUN --diary --step ${step}</div>`}
      ${found && found.named.map(([name, share, largest]) => html`<div><span class="mono">${name}</span><br /><span class="mute">${share} of it not finite${largest && `; largest finite |gradient| ${largest}`}</span></div>`)}
      ${found && found.n > found.named.length && html`<div class="mute">and ${found.n - found.named.length} more</div>`}`;
  }

  function Chart() {
    const diary = /** @type {NonNullable<typeof DIARY>} */ (DIARY), box = useRef(), [width, theme] = useLayout(box), [tip, setTip] = useState(null);
    useEffect(() => {
      if (width < 50) return undefined;
      const exponents = diary.scale.map((v) => (v === null ? null : Math.log2(v))), known = exponents.filter((v) => v !== null);
      const bottom = known.length ? Math.min(...known) : 0, isSkipped = new Set(diary.skipped);
      const marks = diary.steps.map((step, i) => (isSkipped.has(step) ? exponents[i] ?? bottom : null));
      const value = (/** @type {unknown} */ _, /** @type {number | null} */ v) => (v === null || v === undefined ? "–" : scaleText(2 ** v));
      const series = [{ label: "step" }, { label: "loss scale", stroke: colourVar("--curve"), width: 1.5, value, paths: Plot.paths.stepped({ align: 1 }), points: { show: diary.steps.length < 60 } },
        { label: "skipped", stroke: colourVar("--bad-cell"), paths: () => null, points: { show: true, size: 7, fill: colourVar("--bad-cell"), stroke: colourVar("--bad-cell") }, value: (/** @type {unknown} */ _, /** @type {number | null} */ v) => (v === null || v === undefined ? "–" : "yes") }];
      const setCursor = (/** @type {any} */ u) => {
        const at = u.cursor.idx;
        if (at === null || at === undefined || u.cursor.left < 0) return setTip(null);
        const left = u.over.offsetLeft + u.cursor.left;
        setTip({ at, x: left + 16 + TIP_WIDTH > width ? Math.max(0, left - 16 - TIP_WIDTH) : left + 16, y: u.over.offsetTop + 8 });
      };
      const base = frame({ width, height: 220, label: "step", isLog: false, hooks: { setCursor: [setCursor] } });
      const [x, y] = base.axes, values = (/** @type {unknown} */ _, /** @type {number[]} */ ticks) => ticks.map(power);
      const range = (/** @type {unknown} */ _, /** @type {number} */ low, /** @type {number} */ high) => [Math.floor(low ?? 0) - 1, Math.ceil(high ?? 0) + 1];
      const options = { ...base, scales: { x: { time: false }, y: { range } }, axes: [x, { ...y, values, incrs: [1, 2, 4, 8, 16, 32, 64] }], series };
      const plot = new Plot(options, [diary.steps, exponents, marks], box.current);
      return () => plot.destroy();
    }, [width, theme]);
    return html`<div ref=${box}></div>${tip && html`<div class="tip" style=${{ left: `${tip.x}px`, top: `${tip.y}px`, width: `${Math.min(TIP_WIDTH, width)}px` }}><${Tip} at=${tip.at} /></div>`}`;
  }

  const root = document.getElementById("diary-chart");
  if (DIARY && root && DIARY.steps.length > 1) render(html`<${Chart} />`, root);
})();
