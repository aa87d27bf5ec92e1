// Lanes of ranks over steps or over time: zoomed with buttons, keys and by dragging, told under the pointer. Plain ES, no build step.
// @ts-check
"use strict";
(() => {
  // @ts-ignore the scripts before this one define these
  const { html, render, useEffect, useMemo, useRef, useState } = window.htmPreact, { short } = window.hypocenterPage;

  /** @typedef {{rank: number, steps: number[], ms: number[], kinds: string}} Packed `steps`: the first, then differences */
  /** @typedef {{rank: number, steps: number[], starts: number[], ms: number[], kinds: string}} Lane `starts`: in ms, from the lane's first step */
  /** @type {{end: number, lanes: Packed[]} | null} */
  const DATA = JSON.parse(/** @type {HTMLElement} */ (document.getElementById("data")).textContent || "{}").lanes;
  const NAME = 80, LANE = 16, GAP = 4, FOOT = 30, LEAST = 3; // CSS pixels; a slice that wide has an edge of its own
  const KINDS = ["", "skipped by the loss scaler", "not finite", "a finding"]; // hypocenter.report.page.lanes

  /** @param {Packed} packed @returns {Lane} */
  function unpacked({ rank, steps, ms, kinds }) {
    let step = 0, at = 0;
    return { rank, ms, kinds, steps: steps.map((d) => (step += d)), starts: ms.map((took) => { const before = at; at += took; return before; }) };
  }

  /** A time in the unit that reads best. @param {number} ms */
  const took = (ms) => (ms >= 60000 ? `${short(ms / 60000)} min` : ms >= 1000 ? `${short(ms / 1000)} s` : `${short(ms)} ms`);

  /** First and last of a slice on the axis. @param {Lane} lane @param {number} i @param {boolean} isTime @param {number} end @returns {[number, number]} */
  function bounds(lane, i, isTime, end) {
    if (isTime) return [lane.starts[i], lane.starts[i] + lane.ms[i]];
    const [a, b] = [lane.steps[i], lane.steps[i + 1] ?? Math.min(end, 2 * lane.steps[i] - (lane.steps[i - 1] ?? lane.steps[i] - 1))];
    return [a, Math.max(b, a + 1)];
  }

  /** Round numbers on an axis. @param {number} from @param {number} to @param {number} most @param {boolean} isWhole */
  function ticks(from, to, most, isWhole) {
    const least = (to - from) / most, decade = 10 ** Math.floor(Math.log10(least)), every = Math.max(isWhole ? 1 : 0, [1, 2, 5, 10].map((k) => k * decade).find((k) => k >= least) || decade);
    return Array.from({ length: Math.floor(to / every) - Math.ceil(from / every) + 1 }, (_, i) => (Math.ceil(from / every) + i) * every);
  }

  function Lanes() {
    const data = /** @type {NonNullable<typeof DATA>} */ (DATA), lanes = useMemo(() => data.lanes.map(unpacked), []), box = useRef();
    const [width, setWidth] = useState(0), [isTime, setTime] = useState(false), [span, setSpan] = useState(null), [drag, setDrag] = useState(null), [tip, setTip] = useState(null);
    useEffect(() => {
      const observer = new ResizeObserver(() => setWidth(box.current.clientWidth));
      observer.observe(box.current);
      return () => observer.disconnect();
    }, []);
    const whole = isTime ? [0, Math.max(...lanes.map((lane) => lane.starts.length ? lane.starts[lane.starts.length - 1] + lane.ms[lane.ms.length - 1] : 0))] : [Math.min(...lanes.map((lane) => lane.steps[0])), data.end];
    const [from, to] = span || whole, room = Math.max(40, width - NAME - 8), scale = room / (to - from), foot = lanes.length * (LANE + GAP);
    const clipped = (/** @type {number} */ v) => NAME + Math.min(room, Math.max(0, (v - from) * scale));
    const zoom = (/** @type {number} */ factor, /** @type {number} */ shift = 0) => {
      const half = ((to - from) * factor) / 2, middle = (from + to) / 2 + shift * (to - from), a = Math.max(whole[0], middle - half), b = Math.min(whole[1], middle + half);
      setSpan(b - a >= whole[1] - whole[0] ? null : b > a ? [a, b] : span);
    };
    /** @type {Record<string, string[]>} */
    const paths = { k0: [], k1: [], k2: [], k3: [], edge: [] };
    lanes.forEach((lane, at) => lane.steps.forEach((_, i) => {
      const [a, b] = bounds(lane, i, isTime, data.end);
      if (b <= from || a >= to) return;
      const x = clipped(a), wide = Math.max(clipped(b) - x, lane.kinds[i] === "0" ? 0.4 : 2), y = at * (LANE + GAP);
      paths[`k${lane.kinds[i]}`].push(`M${x.toFixed(1)} ${y}h${wide.toFixed(1)}v${LANE}h-${wide.toFixed(1)}z`);
      if (wide >= LEAST) paths.edge.push(`M${x.toFixed(1)} ${y}v${LANE}`);
    }));
    const at = (/** @type {MouseEvent} */ e) => from + (e.clientX - box.current.getBoundingClientRect().left - NAME) / scale;
    const hover = (/** @type {MouseEvent} */ e) => {
      const bounding = box.current.getBoundingClientRect(), lane = lanes[Math.floor((e.clientY - bounding.top) / (LANE + GAP))], v = at(e);
      if (drag) return setDrag({ ...drag, to: v });
      const i = lane && v >= from ? lane.steps.findLastIndex((_, n) => bounds(lane, n, isTime, data.end)[0] <= v) : -1;
      if (i < 0) return setTip(null);
      const says = KINDS[Number(lane.kinds[i])];
      setTip({ x: Math.min(e.clientX - bounding.left + 12, width - 200), y: e.clientY - bounding.top + 16, text: `rank ${lane.rank}, step ${lane.steps[i]}${lane.ms[i] ? `: ${took(lane.ms[i])}` : ""}${says ? `; ${says}` : ""}` });
    };
    const drop = () => {
      if (drag && Math.abs(drag.to - drag.from) * scale > 6) setSpan([Math.max(whole[0], Math.min(drag.from, drag.to)), Math.min(whole[1], Math.max(drag.from, drag.to))]);
      setDrag(null);
    };
    const keys = /** @type {Record<string, () => void>} */ ({ "+": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => zoom(1, -0.25), ArrowRight: () => zoom(1, 0.25), Home: () => setSpan(null) });
    const key = (/** @type {KeyboardEvent} */ e) => { const act = keys[e.key]; if (act) { e.preventDefault(); act(); } };
    const hasTime = lanes.some((lane) => lane.ms.some((ms) => ms > 0));
    const unit = (/** @type {number} */ v) => (isTime ? took(v) : Math.round(v).toLocaleString("en"));
    return html`<div class="controls">
        ${hasTime && html`<label>axis <select value=${isTime ? "time" : "step"} onChange=${(/** @type {any} */ e) => { setTime(e.target.value === "time"); setSpan(null); }}><option value="step">steps</option><option value="time">time, each rank from its first step</option></select></label>`}
        <span><button type="button" aria-label="zoom in" onClick=${() => zoom(0.5)}>+</button><button type="button" aria-label="zoom out" onClick=${() => zoom(2)}>−</button>${span && html`<button type="button" onClick=${() => setSpan(null)}>all</button>`}</span>
        <span>drag over a part to see it larger</span></div>
      <div ref=${box} class="lane-box"><svg class="lanes" width=${width} height=${foot + FOOT} role="slider" tabindex="0" aria-label="lanes of ranks: + and - zoom, arrows move" aria-valuemin=${whole[0]} aria-valuemax=${whole[1]} aria-valuenow=${from} aria-valuetext=${`${unit(from)} to ${unit(to)}`}
          onMouseMove=${hover} onMouseLeave=${() => { setTip(null); setDrag(null); }} onMouseDown=${(/** @type {MouseEvent} */ e) => { if (e.button === 0) setDrag({ from: at(e), to: at(e) }); }} onMouseUp=${drop} onKeyDown=${key}>
        ${lanes.map((lane, i) => html`<text class="end" x=${NAME - 8} y=${i * (LANE + GAP) + 12}>rank ${lane.rank}</text>`)}
        ${Object.entries(paths).map(([name, parts]) => html`<path class=${name} d=${parts.join("")} />`)}
        ${ticks(from, to, Math.max(2, room / 110), !isTime).map((v) => html`<path class="edge" d=${`M${clipped(v)} ${foot}v4`} /><text class="mid" x=${Math.min(clipped(v), width - 30)} y=${foot + 18}>${unit(v)}</text>`)}
        <text class="end" x=${NAME - 8} y=${foot + 18}>${isTime ? "time" : "step"}</text>
        ${drag && html`<rect class="drag" x=${Math.min(clipped(drag.from), clipped(drag.to))} y="0" width=${Math.abs(clipped(drag.to) - clipped(drag.from))} height=${foot} />`}
      </svg>${tip && html`<div class="tip" style=${{ left: `${tip.x}px`, top: `${tip.y}px` }}>${tip.text}</div>`}</div>`;
  }

  const root = document.getElementById("lane-chart");
  if (DATA && root) render(html`<${Lanes} />`, root);
})();
